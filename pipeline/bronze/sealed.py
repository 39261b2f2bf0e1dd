"""A commit's metadata, sealed with a checksum: a change by hand, or by a bad disk, is not taken for a
landing's own data.
"""

from __future__ import annotations

import re

import google_crc32c

from holdfast.errors import LakeError

_SEAL = re.compile(r',"seal":"([0-9a-f]{8})"}$')


def sealed(text: str) -> str:
    """Return the JSON object in *text* with its seal as the last field.

    >>> sealed('{"end":5}')
    '{"end":5,"seal":"52ef64d6"}'
    """
    return f'{text[:-1]},"seal":"{_sum(text)}"}}'


def check_seal(text: str) -> None:
    """Raise LakeError where *text* has a seal that is not its own; earlier commits have none.

    >>> check_seal('{"end":5}'), check_seal(sealed('{"end":5}'))
    (None, None)
    """
    found = _SEAL.search(text)
    if found is None and '"seal":' not in text:
        return
    if found is None or found[1] != _sum(f"{text[: found.start()]}}}"):
        raise LakeError("its checksum is another: it was changed by hand")


def _sum(text: str) -> str:
    return f"{google_crc32c.value(text.encode()):08x}"
