"""Which URLs can be asked, where redirects lead, and which addresses are one's own."""

from __future__ import annotations

import pytest
from yarl import URL

from keylane.http import Request, UnsendableError
from keylane.http.addresses import is_public, proxy_for, redirected, url_of


@pytest.mark.parametrize(
    "url",
    [
        "https://bucket.example.com/a%2Fb/c%20d?X-Signature=a%2Bb%3D%3D&empty=&plus=a+b",
        "https://host.example.com/~user/(x)/a;b=c/%7E%41",
        "http://host.example.com/?q=%C3%A4#part",
        "http://[::1]:8080/x",
        "http://service_with_underscores/x",
    ],
)
def test_a_url_is_asked_as_it_was_given(url: str) -> None:
    assert str(url_of(Request("GET", url))) == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h/a", "http://h/a?q=a%2Bb+c"),
        ("http://h/a?", "http://h/a?q=a%2Bb+c"),
        ("http://h/a?sig=%2B%3D#part", "http://h/a?sig=%2B%3D&q=a%2Bb+c#part"),
    ],
)
def test_parameters_are_added_and_leave_the_rest_alone(url: str, expected: str) -> None:
    assert str(url_of(Request("GET", url, params={"q": "a+b c"}))) == expected


def test_a_url_of_other_characters_is_encoded() -> None:
    assert str(url_of(Request("GET", "http://münchen.example/straße 1"))) == (
        "http://xn--mnchen-3ya.example/stra%C3%9Fe%201"
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "/hook",
        "http:///x",
        "http://:80/",
        "http://user@/x",
        "ftp://host/x",
        "http://a b/",
        "http://" + "x" * 64 + ".com/",
        "http://host..example.com/",
        "http://host:99999/",
        "http://host:port/",
        "http://[::1/",
        "http://[::zz]/",
        "http://host\r\nX-Other: 1/",
    ],
)
def test_what_can_never_be_asked_is_fatal(url: str) -> None:
    with pytest.raises(UnsendableError, match="its URL"):
        url_of(Request("POST", url))


def test_a_url_of_another_type_is_fatal() -> None:
    with pytest.raises(UnsendableError, match="the URL of a request is a value of type NoneType: give a str"):
        url_of(Request("POST", None))  # type: ignore[arg-type]


ASKED = URL("https://hooks.example.com/a/b")
SECRET = {"X-Api-Key": "secret", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "status", "is_followed"),
    [
        *[("GET", status, True) for status in (301, 302, 303, 307, 308)],
        *[("POST", status, False) for status in (301, 302, 303)],
        *[(method, status, True) for method in ("POST", "PUT", "DELETE") for status in (307, 308)],
    ],
)
def test_a_redirect_is_followed_where_it_keeps_what_is_asked(method: str, status: int, is_followed: bool) -> None:
    request = Request(method, str(ASKED), SECRET, body=b"payload")
    following = redirected(request, ASKED, status, "../c?x=1")
    assert (following is not None) == is_followed
    if following is not None:
        assert following == (Request(method, "https://hooks.example.com/c?x=1", SECRET, body=b"payload"), following[1])


@pytest.mark.parametrize(
    "location", ["https://other.example.com/", "https://hooks.example.com:8443/", "//other.example.com/x"]
)
def test_no_header_of_the_users_goes_to_another_origin(location: str) -> None:
    following = redirected(Request("POST", str(ASKED), SECRET, body=b"payload"), ASKED, 307, location)
    assert following is not None
    assert following[0].headers == {"Content-Type": "application/json"}
    assert following[0].body == b"payload"


@pytest.mark.parametrize("location", [None, "", "http://hooks.example.com/", "ftp://hooks.example.com/", "https://["])
def test_a_redirect_that_leads_nowhere_or_out_of_tls_is_not_followed(location: str | None) -> None:
    assert redirected(Request("GET", str(ASKED)), ASKED, 302, location) is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        *[
            (one, False)
            for one in (
                "127.0.0.1",
                "127.9.9.9",
                "0.0.0.0",
                "10.0.0.1",
                "172.16.0.1",
                "192.168.1.1",
                "169.254.169.254",
                "100.64.0.1",
                "224.0.0.1",
                "255.255.255.255",
                "::",
                "::1",
                "fe80::1%eth0",
                "fd00::1",
                "ff02::1",
                "::ffff:127.0.0.1",
                "64:ff9b::7f00:1",
                "2002:7f00:1::",
                "::7f00:1",
                "::ffff:0:7f00:1",
                "64:ff9b:1::a9fe:a9fe",
                "3fff::1",
                "5f00::1",
                "fec0::1",
            )
        ],
    ],
)
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public(address) == expected


def test_the_environment_says_which_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "inside.example.com")
    outside, inside = URL("http://outside.example.com/"), URL("http://inside.example.com/")
    assert proxy_for(outside, None) is None
    assert proxy_for(outside, "environment") == "http://proxy.example.com:3128"
    assert proxy_for(inside, "environment") is None
    assert proxy_for(inside, "http://other.example.com:1") == "http://other.example.com:1"
