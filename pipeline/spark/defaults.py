"""The user's `spark-defaults.conf`, which Spark reads where it is started: needed where our settings are
added to the user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SparkError


def spark_defaults() -> Mapping[str, str]:
    """Return the settings in `spark-defaults.conf`, in the folder that Spark looks in; empty where there is
    none. Raises SparkError where it cannot be read.
    """
    file = _folder() / "spark-defaults.conf"
    try:
        return properties(file.read_text(encoding="utf-8", errors="replace"))  # as Spark reads it
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SparkError(
            f"{file} cannot be read: {error}; it is where SPARK_CONF_DIR or SPARK_HOME point to"
        ) from error


def _folder() -> Path:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return Path(folder)
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "conf"
    import pyspark

    return Path(pyspark.__file__).parent / "conf"


def properties(text: str) -> Mapping[str, str]:
    r"""Return the names and values of a file of Java properties; the last one of a name counts, as in Java.

    >>> properties("# ours\nspark.jars  /a.jar,/b.jar\n  spark.x=1\nspark.y : two words\nspark.z\n")
    {'spark.jars': '/a.jar,/b.jar', 'spark.x': '1', 'spark.y': 'two words', 'spark.z': ''}
    >>> properties("spark.jars /a.jar,\\\n    /b.jar\n")
    {'spark.jars': '/a.jar,/b.jar'}
    """
    found = {}
    for line in re.sub(r"\\\n[ \t]*", "", text).splitlines():
        if (told := line.strip()) and told[0] not in "#!":
            name, *value = re.split(r"\s*[=:]\s*|\s+", told, maxsplit=1)
            found[name] = "".join(value)
    return found
