"""Every setting of holdfast in one typed, frozen object, and where each value came from.

A flag wins over the environment, the environment over the file, the file over the default:

    holdfast --set web_port=7000 ...                 # flag
    HOLDFAST_WEB_PORT=7000                           # environment; HOLDFAST_WEB_TOKEN_FILE=/run/token reads
    the value from a file
    HOLDFAST_KAFKA__SASL_PASSWORD_FILE=/run/password # a Kafka property: upper case, dots to underscores
    [holdfast]                                       # holdfast.toml
    web_port = 7000
    [web]                                            # a section: token is web_token; so with console,
    schema_registry, outbox, stores, spark
    token = "..."
    [kafka]
    "security.protocol" = "SASL_SSL"                 # Kafka's own names, word for word

A module holds one subject's settings with their checks: application, outbox, schema_registry, web, console,
timeouts, fetching, stores, spark. `Settings` has them all under their full names. Code that needs one subject
takes its class, such as `WebSettings`.
"""

from __future__ import annotations

from holdfast.config.sections.schema_registry import SchemaRegistrySettings
from holdfast.config.sections.web import HostList, WebSettings, is_loopback
from holdfast.config.security import Oidc, Sasl
from holdfast.config.settings import (
    ClientConfig,
    SettingRow,
    Settings,
    load_settings,
    settings_from_environment,
)
from holdfast.config.sources import find_file

__all__ = [
    "ClientConfig",
    "HostList",
    "Oidc",
    "Sasl",
    "SchemaRegistrySettings",
    "SettingRow",
    "Settings",
    "WebSettings",
    "find_file",
    "is_loopback",
    "load_settings",
    "settings_from_environment",
]
