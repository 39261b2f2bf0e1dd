"""No message shows a password, however a URL is spelled."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.outbox.schema.database import Database
from holdfast.outbox.schema.tables import database_url


@pytest.mark.parametrize(
    "url",
    [
        "postgres//ada:PW@localhost/shop",
        "ada:PW@localhost",
        "://ada:PW@localhost/shop",
        "postgres//x/shop?password=PW",
        "//ada:a@PW@h",
    ],
)
def test_a_malformed_url_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        database_url(url)

    assert "PW" not in str(caught.value)
    assert caught.value.__suppress_context__, "the error behind it repeats the URL"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("mysql://ada:sesame@PW@localhost/shop", "%40"),
        ("postgresql://ada:sesame@PW@localhost:5432/shop", "%40"),
        ("sqlite://ada:PW@localhost/shop", "sqlite:///"),
    ],
)
def test_what_a_password_made_of_the_url_is_refused_with_the_cure_and_without_the_password(
    url: str, remedy: str
) -> None:
    """The part after the first @ was taken for the host's name, tried, and shown."""
    with pytest.raises(ConfigError) as caught:
        database_url(url)

    assert remedy in str(caught.value)
    assert "PW" not in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_password_among_the_parameters_is_not_shown() -> None:
    database = Database("postgresql://ada:PW1@localhost/shop?password=PW2&sslpassword=PW3&connect_timeout=3")
    assert "PW" not in database.place
    assert "connect_timeout=3" in database.place
