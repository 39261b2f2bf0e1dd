"""Settings: the strongest source, the refused values, and their messages."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from holdfast.cli.lake.engines import spark_options
from holdfast.config import Settings, load_settings, settings_from_environment
from holdfast.config.sources import SECTIONS, find_file
from holdfast.errors import ConfigError

SOURCES = ("default", "file", "environment", "flag")


def load(
    *,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml: str | None = None,
    folder: Path | None = None,
) -> Settings:
    file = None
    if toml is not None:
        assert folder is not None
        file = folder / "holdfast.toml"
        file.write_text(toml, "utf-8")
    return load_settings(flags=flags or {}, env=env or {}, file=file)


@pytest.mark.parametrize("strongest", SOURCES)
def test_each_source_wins_over_all_the_weaker_ones(strongest: str, tmp_path: Path) -> None:
    given = SOURCES[1 : SOURCES.index(strongest) + 1]
    settings = load(
        flags={"web_port": "7003", "kafka.client.id": "flag"} if "flag" in given else {"web_port": None},
        env=(
            {"HOLDFAST_WEB_PORT": "7002", "HOLDFAST_KAFKA__CLIENT_ID": "environment"}
            if "environment" in given
            else {}
        ),
        toml='[holdfast]\nweb_port = 7001\n[kafka]\n"client.id" = "file"\n' if "file" in given else None,
        folder=tmp_path,
    )
    assert settings.web_port == {"default": 6066, "file": 7001, "environment": 7002, "flag": 7003}[strongest]
    assert settings.kafka.get("client.id", "default") == strongest
    for name in ("web_port", "kafka.client.id"):
        assert settings.origin(name).split()[0] == strongest


def test_the_origin_names_the_variable_and_the_file(tmp_path: Path) -> None:
    settings = load(env={"HOLDFAST_APP": "shop"}, toml="[holdfast]\nstandbys = 2", folder=tmp_path)
    assert settings.origin("app") == "environment HOLDFAST_APP"
    assert settings.origin("standbys") == f"file {tmp_path / 'holdfast.toml'}"
    assert settings.origin("kafka.bootstrap.servers") == "default"


SECTIONED = """
[holdfast]
web_bind = "::1"
[web]
port = 7001
token = "hunter2"
[outbox]
shards = 4
[stores]
cache_bytes = "4MiB"
[spark]
master = "local[2]"
[kafka]
"client.id" = "me"
"""


def test_properties_of_spark_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    toml = (
        '[spark]\nmaster = "yarn"\n"spark.executor.cores" = 4\nexecutor.memory = "2g"\neventLog.enabled ='
        " true\n"
    )
    env = {"HOLDFAST_SPARK_CONF": "spark.executor.memory=3g; spark.hadoop.fs.s3a.secret.key=hunter2"}
    settings = load(toml=toml, folder=tmp_path, env=env, flags={"spark.executor.cores": "8"})
    assert dict(settings.spark_conf) == {
        "spark.executor.cores": "8",
        "spark.executor.memory": "3g",
        "spark.eventLog.enabled": "true",
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
    }
    rows = {row.name: (row.value, row.origin) for row in settings.describe() if row.name.startswith("spark.")}
    assert rows["spark.executor.cores"] == ("8", "flag")
    assert rows["spark.executor.memory"] == ("3g", "environment HOLDFAST_SPARK_CONF")
    assert rows["spark.eventLog.enabled"][1].endswith("holdfast.toml [spark]")
    assert rows["spark.hadoop.fs.s3a.secret.key"][0] == "********"
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("text", ["executor.memory=2g", "spark.executor.memory", "spark.a=b;c=d"])
def test_a_variable_that_holds_no_properties_of_spark_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HOLDFAST_SPARK_CONF: write spark\.NAME=VALUE"):
        load(env={"HOLDFAST_SPARK_CONF": text})
    with pytest.raises(ConfigError, match=r"executor\.memory is no property of Spark"):
        Settings(spark_conf={"executor.memory": "2g"})


def test_a_section_holds_the_settings_that_begin_with_its_name(tmp_path: Path) -> None:
    settings = load(toml=SECTIONED, folder=tmp_path, env={"HOLDFAST_OUTBOX_SHARDS": "5"})
    assert (settings.web_bind, settings.web_port, settings.web_token) == ("::1", 7001, "hunter2")
    assert (settings.outbox_shards, settings.store_cache_bytes, settings.spark_master) == (
        5,
        4 << 20,
        "local[2]",
    )
    assert settings.origin("outbox_shards") == "environment HOLDFAST_OUTBOX_SHARDS"
    assert settings.origin("web_bind") == f"file {tmp_path / 'holdfast.toml'}"
    rows = {row.name: row for row in settings.describe()}
    assert rows["web_port"].origin == f"file {tmp_path / 'holdfast.toml'} [web]"
    assert rows["web_token"].value == "********"


def test_spark_is_started_as_the_options_say_else_as_the_settings_say() -> None:
    settings = load(env={"HOLDFAST_SPARK_MASTER": "local[2]", "HOLDFAST_SPARK_MEMORY": "2g"})
    asked = spark_options(settings, None, None, None)
    told = spark_options(settings, "local[3]", "3g", None)
    assert (asked.master, asked.memory) == ("local[2]", "2g")
    assert (told.master, told.memory) == ("local[3]", "3g")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_a_room_of_its_own_for_each_of_its_settings(section: str) -> None:
    """No setting can be meant by two names: a section's prefix and a name give one setting, or none."""
    names = {declared.name for declared in fields(Settings)}
    assert [name for name in names if name.startswith(SECTIONS[section])]
    assert section not in names


@pytest.mark.parametrize("order", [1, -1])
def test_a_setting_that_occurs_twice_in_the_file_is_refused_with_both_lines(
    order: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(toml="\n".join(["[holdfast]\nweb_port = 1", "[web]\nport = 2"][::order]), folder=tmp_path)
    file = tmp_path / "holdfast.toml"
    places = [f"file {file}", f"file {file} [web]"][::order]
    assert str(refused.value) == f"{' and '.join(places)} both set web_port: keep one of them"


def test_one_property_under_two_names_is_still_one_property(tmp_path: Path) -> None:
    toml = (
        '[kafka]\n"sasl.mechanisms" = "PLAIN"\n"sasl.username" = "a"\n"sasl.password" ='
        ' "b"\n"security.protocol" = "sasl_ssl"'
    )
    settings = load(env={"HOLDFAST_KAFKA__SASL_MECHANISM": "scram-sha-256"}, toml=toml, folder=tmp_path)
    assert settings.kafka["sasl.mechanism"] == "SCRAM-SHA-256"
    assert "sasl.mechanisms" not in settings.kafka
    assert settings.kafka["security.protocol"] == "SASL_SSL"


def test_plain_kafka_bootstrap_servers_is_read_and_is_the_weaker_of_the_two_variables() -> None:
    assert load(env={"KAFKA_BOOTSTRAP_SERVERS": "a:1"}).bootstrap_servers == "a:1"
    both = {"KAFKA_BOOTSTRAP_SERVERS": "a:1", "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "b:1"}
    assert load(env=both).bootstrap_servers == "b:1"
    assert load(env={"KAFKA_HEAP_OPTS": "-Xmx1g"}).bootstrap_servers == "127.0.0.1:9092"


def test_unquoted_dotted_names_in_toml_are_the_same_properties(tmp_path: Path) -> None:
    toml = "[kafka]\nbootstrap.servers = 'a:1'\nsocket.keepalive.enable = true\nsocket.timeout.ms = 5000"
    settings = load(toml=toml, folder=tmp_path)
    assert dict(settings.kafka) == {
        "bootstrap.servers": "a:1",
        "socket.keepalive.enable": "true",
        "socket.timeout.ms": "5000",
    }


def test_text_is_read_as_the_type_of_the_setting() -> None:
    env = {
        "HOLDFAST_COMPAT_VIEW": "true",
        "HOLDFAST_SESSION_TIMEOUT_S": "6",
        "HOLDFAST_FETCH_BYTES": "4 MiB",
        "HOLDFAST_STORE_CACHE_BYTES": "1048576",
        "HOLDFAST_DATA_DIR": "~/state",
        "HOLDFAST_STANDBYS": "0",
        "HOLDFAST_APP": "",
    }
    settings = load(env=env)
    assert settings.compat_view is True
    assert (settings.session_timeout_s, settings.heartbeat_interval_s) == (6.0, 1.8)
    assert (settings.fetch_bytes, settings.store_cache_bytes) == (4 << 20, 1 << 20)
    assert settings.data_dir == Path.home() / "state"
    assert settings.standbys == 0
    assert settings.app == "holdfast", "an empty variable counts as not set"


@pytest.mark.parametrize(
    ("env", "toml", "flags", "parts"),
    [
        (
            {"HOLDFAST_WEB_PROT": "1"},
            "",
            {},
            ["environment HOLDFAST_WEB_PROT", "did you mean", "HOLDFAST_WEB_PORT"],
        ),
        (
            {"HOLDFAST_KAFKA__BOOTSTRAP_SERVER": "a:1"},
            "",
            {},
            ["HOLDFAST_KAFKA__BOOTSTRAP_SERVER", "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"],
        ),
        ({"HOLDFAST_WEB_TOKN_FILE": "/x"}, "", {}, ["HOLDFAST_WEB_TOKN_FILE"]),
        (
            {},
            "[holdfast]\nweb_prot = 1",
            {},
            ["holdfast.toml", "unknown setting web_prot", "did you mean web_port"],
        ),
        (
            {},
            "[kafka]\n'bootstrap.server' = 'a:1'",
            {},
            ["holdfast.toml [kafka]", "bootstrap.server;", "did you mean bootstrap.servers"],
        ),
        ({}, "[kafak]\n'x' = 1", {}, ["holdfast.toml", "kafak", "did you mean kafka"]),
        ({}, "web_port = 1", {}, ["holdfast.toml", "web_port", "[holdfast]"]),
        ({}, "kafka = 1", {}, ["kafka must be a table"]),
        ({}, "[wbe]\nport = 1", {}, ["holdfast.toml", "unknown table or key wbe", "did you mean web"]),
        ({}, "web = 1", {}, ["web must be a table: write [web]"]),
        ({}, "[web]\nprot = 1", {}, ["unknown setting prot in [web]", "did you mean port?"]),
        ({}, "[web]\nweb_port = 1", {}, ["unknown setting web_port in [web]", "did you mean port"]),
        ({}, "[stores]\ndata_dir = 'x'", {}, ["unknown setting data_dir in [stores]", "in [holdfast]"]),
        ({}, "[holdfast]\n[holdfast.web]\nport = 1", {}, ["unknown setting web.port", "web_port"]),
        ({}, "", {"web_prot": 1}, ["flag web_prot", "did you mean web_port"]),
        ({}, "", {"kafka.debgu": "all"}, ["flag kafka.debgu", "did you mean debug"]),
        ({}, "", {"origins": {}}, ["flag origins", "unknown setting"]),
    ],
)
def test_an_unknown_name_is_refused_with_its_origin_and_its_neighbours(
    env: dict[str, str], toml: str, flags: dict[str, object], parts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags=flags, env=env, toml=toml, folder=tmp_path)
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("group.id", "x", ["set by holdfast itself", "`app`"]),
        ("transactional.id", "x", ["set by holdfast itself", "fences"]),
        ("enable.auto.commit", "true", ["position"]),
        ("isolation.level", "read_uncommitted", ["exactly-once"]),
        ("auto.offset.reset", "latest", ["position"]),
        ("linger.ms", "5", ["`linger_ms`"]),
        ("ssl.keystore.location", "x.p12", ["openssl pkcs12", "ssl.certificate.location"]),
        ("sasl.jaas.config", "x", ["sasl.username"]),
        ("sasl.oauthbearer.assertion.file", "x", ["client credentials"]),
        ("security.protocol", "TLS", ["PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"]),
        ("sasl.mechanism", "SCRAM", ["SCRAM-SHA-256"]),
    ],
)
def test_a_property_that_is_not_the_users_to_set_is_refused_with_the_reason_wherever_it_is_written(
    name: str, value: str, parts: list[str], tmp_path: Path
) -> None:
    variable = "HOLDFAST_KAFKA__" + name.upper().replace(".", "_")
    for place, attempt in (
        (f"kafka.{name}", lambda: Settings(kafka={name: value})),
        (f"flag kafka.{name}", lambda: load(flags={f"kafka.{name}": value})),
        ("holdfast.toml", lambda: load(toml=f"[kafka]\n'{name}' = '{value}'", folder=tmp_path)),
        *(() if "assertion" in name else ((variable, lambda: load(env={variable: value})),)),
    ):
        with pytest.raises(ConfigError) as refused:
            attempt()
        assert place in str(refused.value)
        for part in parts:
            assert part in str(refused.value)


def test_secrets_can_come_from_files_and_a_trailing_newline_is_not_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "password").write_text("p w\r\n")
    env = {
        "HOLDFAST_WEB_TOKEN_FILE": str(tmp_path / "token"),
        "HOLDFAST_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "password"),
        "HOLDFAST_KAFKA__SASL_USERNAME": "ada",
        "HOLDFAST_KAFKA__SASL_MECHANISM": "PLAIN",
        "HOLDFAST_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
    }
    settings = load(env=env)
    assert settings.web_token == "s3cret"
    assert settings.kafka["sasl.password"] == "p w"
    assert settings.origin("web_token") == "environment HOLDFAST_WEB_TOKEN_FILE"


def test_a_secret_file_that_cannot_be_read_or_is_empty_or_doubled_is_refused(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n")
    for env, part in (
        ({"HOLDFAST_WEB_TOKEN_FILE": str(missing)}, "cannot read"),
        ({"HOLDFAST_WEB_TOKEN_FILE": str(empty)}, "is empty"),
        (
            {"HOLDFAST_WEB_TOKEN_FILE": str(empty), "HOLDFAST_WEB_TOKEN": "x"},
            "HOLDFAST_WEB_TOKEN is set as well",
        ),
    ):
        with pytest.raises(ConfigError, match="HOLDFAST_WEB_TOKEN_FILE") as refused:
            load(env=env)
        assert part in str(refused.value)


SECRETS = {
    "sasl.password": "hunter2",
    "sasl.username": "ada",
    "sasl.mechanism": "PLAIN",
    "security.protocol": "SASL_SSL",
    "ssl.key.password": "hunter2",
    "ssl.key.pem": "hunter2",
}


def test_secrets_are_never_printed() -> None:
    settings = Settings(web_token="hunter2", kafka=SECRETS)
    rows = settings.describe()
    for text in (
        repr(settings),
        str(settings),
        repr(settings.kafka),
        str({"kafka": settings.kafka}),
        repr(rows),
        repr(settings.sasl()),
    ):
        assert "hunter2" not in text
    masked = [row.name for row in rows if row.value == "********"]
    assert masked == ["web_token", "kafka.sasl.password", "kafka.ssl.key.password", "kafka.ssl.key.pem"]
    with pytest.raises(ConfigError) as refused:
        load(env={"HOLDFAST_WEB_TOKEN": "hunter2 with spaces"})
    assert "hunter2" not in str(refused.value)


def test_the_check_for_secrets_can_fail() -> None:
    assert "ada" in repr(Settings(kafka=SECRETS)), (
        "a value that is not secret is printed, so a leak would be seen"
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"app": "my app"}, "app is 'my app'"),
        ({"app": ""}, "app is ''"),
        ({"app": "x" * 101}, "1 to 100"),
        ({"coordination_topic": "a/b"}, "coordination_topic"),
        ({"coordination_topic": ".."}, "coordination_topic"),
        ({"instance_id": "a b"}, "instance_id"),
        ({"kafka": {"bootstrap.servers": "a:1,,b:1"}}, "bootstrap.servers"),
        ({"kafka": {"bootstrap.servers": " "}}, "bootstrap.servers"),
        ({"web_port": 0}, "the range is 1 to 65535"),
        ({"web_port": 65_536}, "the range is 1 to 65535"),
        ({"standbys": -1}, "standbys is -1"),
        ({"replication_factor": 0}, "replication_factor is 0"),
        ({"session_timeout_s": float("nan")}, "session_timeout_s is nan"),
        ({"session_timeout_s": float("inf")}, "session_timeout_s is inf"),
        ({"cache_rows": "many"}, "cache_rows must be a whole number"),
        ({"cache_rows": True}, "cache_rows must be a whole number"),
        ({"fetch_bytes": 1}, "fetch_bytes is 1"),
        ({"heartbeat_interval_s": 4.0}, "at most a third of session_timeout_s"),
        ({"session_timeout_s": 31.0}, "session_timeout_s may be at most request_timeout_s"),
        ({"commit_timeout_s": 61.0}, "commit_timeout_s may be at most rebalance_timeout_s"),
        ({"stall_timeout_s": 20.0}, "commit_timeout_s may be at most stall_timeout_s"),
        ({"fetch_bytes": 128 << 20}, "fetch_bytes may be at most inflight_bytes"),
        ({"web_bind": "0.0.0.0"}, "set web_token"),
        ({"web_bind": "example.org"}, "set web_token"),
        ({"web_bind": ""}, "set web_token"),
        ({"web_tls_cert": Path("c")}, "belong together"),
        ({"web_tls_key": Path("k")}, "belong together"),
        ({"web_tls_ca": Path("a")}, "web_tls_cert"),
        ({"web_token": ""}, "visible ASCII"),
        ({"web_token": "naïve"}, "visible ASCII"),
        ({"web_url": "example.org:6066"}, "web_url"),
        ({"web_url": "http://example.org/path"}, "web_url"),
        ({"web_url": "ftp://example.org"}, "web_url"),
        ({"web_url": "http://[::1"}, "web_url is 'http://[::1'; write http://host:port"),
        ({"web_url": "http://example.org:65536"}, "web_url"),
        ({"web_url": "http://example.org:port"}, "web_url"),
        ({"web_url": "http://example.org:0"}, "web_url"),
        ({"kafka": {"sasl.username": "ada"}}, "security.protocol is PLAINTEXT"),
        ({"kafka": {"ssl.ca.location": "ca.pem"}}, "security.protocol is PLAINTEXT"),
        (
            {
                "kafka": {
                    "ssl.ca.location": "c",
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "GSSAPI",
                }
            },
            "ssl.ca.location is set",
        ),
        ({"kafka": {"security.protocol": "SASL_SSL"}}, "sasl.mechanism is missing"),
        (
            {"kafka": {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"}},
            "needs the Kafka property sasl.password",
        ),
        (
            {"kafka": {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}},
            "sasl.oauthbearer.method",
        ),
    ],
)
def test_what_cannot_work_is_refused_on_construction(changes: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**changes)  # type: ignore[arg-type]
    assert part in str(refused.value)


def test_a_refusal_says_where_the_value_came_from() -> None:
    with pytest.raises(ConfigError, match=r"web_port \(environment HOLDFAST_WEB_PORT\) is 0"):
        load(env={"HOLDFAST_WEB_PORT": "0"})
    with pytest.raises(ConfigError, match=r"environment HOLDFAST_WEB_PORT: web_port cannot be 'x'"):
        load(env={"HOLDFAST_WEB_PORT": "x"})
    with pytest.raises(ConfigError, match=r"flag: compat_view cannot be 'maybe'"):
        load(flags={"compat_view": "maybe"})


def test_every_wrong_value_is_reported_at_once_with_its_origin_and_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(
            flags={"compat_view": "maybe", "kafka.debgu": "all"},
            env={
                "HOLDFAST_WEB_PORT": "0",
                "HOLDFAST_WEB_PROT": "1",
                "HOLDFAST_WEB_TOKEN_FILE": str(tmp_path / "gone"),
            },
            toml=(
                "[outbox]\nshards = 'hunter2'\n[holdfast]\nstandbys = -1\nstandbies = 2\n[kafak]\nx ="
                " 1\n[kafka]\nacks = 1"
            ),
            folder=tmp_path,
        )
    first, *lines = str(refused.value).splitlines()
    assert first == "10 settings are wrong:"
    assert [line.removeprefix("- ").split(":")[0].replace(str(tmp_path), "") for line in lines] == [
        "file /holdfast.toml",
        "file /holdfast.toml",
        "file /holdfast.toml [kafka]",
        "environment HOLDFAST_WEB_PROT",
        "environment HOLDFAST_WEB_TOKEN_FILE",
        "flag kafka.debgu",
        "file /holdfast.toml [outbox]",
        f"standbys (file {tmp_path}/holdfast.toml) is -1; the range is 0 to 100".replace(str(tmp_path), ""),
        "web_port (environment HOLDFAST_WEB_PORT) is 0; the range is 1 to 65535",
        "flag",
    ]
    with pytest.raises(ConfigError) as refused:
        Settings(app="a b", web_bind="0.0.0.0", web_token="hunter2 x", log_format="xml", standbys=-1)
    said = str(refused.value)
    assert "hunter2" not in said
    assert [line.split(" ")[:2] for line in said.splitlines()] == [
        ["3", "settings"],
        ["-", "standbys"],
        ["-", "web_token"],
        ["-", "log_format"],
    ]


def test_the_settings_of_a_section_are_compared_once_each_is_within_its_range() -> None:
    """A wrong number is no reason to say that two numbers do not fit together."""
    with pytest.raises(ConfigError, match=r"^session_timeout_s is 1e\+09; the range is 1 to 1800$"):
        Settings(session_timeout_s=1e9)


def test_everything_at_the_edge_of_its_range_is_accepted() -> None:
    ordered = {
        "heartbeat_interval_s",
        *(f"{name}_timeout_s" for name in ("session", "commit", "stall", "rebalance", "request")),
    }
    room: dict[str, object] = {"inflight_bytes": 16 << 30}
    for declared in fields(Settings):
        if declared.metadata.get("low") is None or declared.name in ordered:
            continue
        lowest = max(
            declared.metadata["low"], Settings().fetch_bytes if declared.name == "inflight_bytes" else 0
        )
        for value in (lowest, declared.metadata["high"]):
            settings = Settings(**(room | {declared.name: value}))  # type: ignore[arg-type]
            assert getattr(settings, declared.name) == value


def test_a_worker_that_others_can_reach_needs_a_token_or_mutual_tls() -> None:
    assert Settings(web_bind="0.0.0.0", web_token="t").web_token == "t"
    cert, key = Path("c"), Path("k")
    assert Settings(
        web_bind="0.0.0.0", web_tls_ca=Path("a"), web_tls_cert=cert, web_tls_key=key
    ).web_tls_ca == Path("a")
    with pytest.raises(ConfigError, match="set web_token"):
        Settings(web_bind="0.0.0.0", web_tls_cert=cert, web_tls_key=key)


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "http://127.0.0.1:6066"),
        ({"web_port": 7000}, "http://127.0.0.1:7000"),
        ({"web_bind": "::1"}, "http://[::1]:6066"),
        ({"web_tls_cert": Path("c"), "web_tls_key": Path("k")}, "https://127.0.0.1:6066"),
        ({"web_url": "https://shop-1:443/"}, "https://shop-1:443"),
    ],
)
def test_the_advertised_url_follows_from_the_web_settings(changes: dict[str, object], url: str) -> None:
    assert Settings(**changes).advertised_url == url  # type: ignore[arg-type]


def test_a_wildcard_address_is_advertised_by_host_name() -> None:
    assert "0.0.0.0" not in Settings(web_bind="0.0.0.0", web_token="t").advertised_url


def test_settings_are_values() -> None:
    settings = Settings(app="shop", kafka={"debug": "all"})
    with pytest.raises(FrozenInstanceError):
        settings.app = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.kafka["debug"] = "none"  # type: ignore[index]
    assert settings == Settings(app="shop", kafka={"debug": "all"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert replace(settings, app="x").kafka == settings.kafka
    assert hash(settings.kafka) == hash(replace(settings).kafka)


def test_derived_names_follow_the_application() -> None:
    settings = Settings(app="shop")
    assert (settings.quarantine_topic, settings.workers_topic) == ("shop-quarantine", "shop-workers")


def test_each_kind_of_client_gets_the_properties_it_knows() -> None:
    settings = Settings(
        app="shop", kafka={"compression.type": "zstd", "fetch.min.bytes": "10", "socket.timeout.ms": "900"}
    )
    common = {"bootstrap.servers": "127.0.0.1:9092", "client.id": "shop", "socket.timeout.ms": "900"}
    assert settings.client() == common
    assert settings.producer() == common | {"compression.type": "zstd"}
    assert settings.consumer(**{"group.id": "g"}) == common | {"fetch.min.bytes": "10", "group.id": "g"}
    assert settings.client(**{"transactional.id": "t"}) == common | {
        "compression.type": "zstd",
        "transactional.id": "t",
    }
    assert settings.client(**{"group.id": "g"}) == settings.consumer(**{"group.id": "g"})
    assert settings.client(**{"client.id": "me", "metadata.broker.list": "b:1"})["bootstrap.servers"] == "b:1"


def test_the_file_is_the_flags_else_the_variables_else_the_folders(tmp_path: Path) -> None:
    assert find_file(None, {}, tmp_path) is None
    (tmp_path / "holdfast.toml").write_text("")
    assert find_file(None, {}, tmp_path) == tmp_path / "holdfast.toml"
    assert find_file(None, {"HOLDFAST_CONFIG": "/env.toml"}, tmp_path) == Path("/env.toml")
    assert find_file("/flag.toml", {"HOLDFAST_CONFIG": "/env.toml"}, tmp_path) == Path("/flag.toml")


def test_a_file_that_was_named_must_exist_and_parse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings(flags={}, env={}, file=tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(toml="[holdfast", folder=tmp_path)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load(toml="a = " + "[" * 5_000, folder=tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(flags={}, env={}, file=tmp_path / "latin.toml")


def test_an_unknown_home_folder_is_refused_with_its_origin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file ~no-such-user/a\.toml: .*~no-such-user is not known"):
        find_file(None, {"HOLDFAST_CONFIG": "~no-such-user/a.toml"}, tmp_path)
    with pytest.raises(ConfigError, match=r"environment HOLDFAST_DATA_DIR: .*~no-such-user is not known"):
        load(env={"HOLDFAST_DATA_DIR": "~no-such-user/data"})


def test_a_size_of_more_digits_than_a_number_can_have_is_refused_with_its_origin() -> None:
    with pytest.raises(ConfigError, match="environment HOLDFAST_FETCH_BYTES: fetch_bytes cannot be"):
        load(env={"HOLDFAST_FETCH_BYTES": "9" * 5_000})


def test_a_process_reads_its_own_environment_and_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "holdfast.toml").write_text("[holdfast]\nstandbys = 2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    monkeypatch.setenv("HOLDFAST_APP", "shop")
    settings = settings_from_environment(web_port=7001)
    assert (settings.standbys, settings.app, settings.web_port) == (2, "shop", 7001)


def test_variables_of_the_development_broker_and_the_tests_are_not_settings() -> None:
    env = {
        "HOLDFAST_CONFIG": "x",
        "HOLDFAST_DEV_DIR": "x",
        "HOLDFAST_TEST_SEED": "1",
        "HOLDFAST_BENCH_N": "1",
        "HOLDFAST_DEMO_KEEP": "1",
    }
    assert load(env=env | {"HOLDFAST_CACHE": "x", "HOLDFAST_MAVEN_REPOSITORY": "x"}) == Settings()
    assert load(env={"HOLDFAST_CACHE_ROWS": "7"}).cache_rows == 7


def test_every_setting_is_described() -> None:
    rows = {row.name: row for row in Settings().describe()}
    assert rows.keys() == {declared.name for declared in fields(Settings)} - {
        "kafka",
        "spark_conf",
        "origins",
    } | {"kafka.bootstrap.servers"}
    assert all(row.doc and row.origin == "default" for row in rows.values())
    assert rows["instance_id"].value is None
