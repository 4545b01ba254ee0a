"""Signed tokens of an identity provider: which are accepted, and every known way to forge one."""

import asyncio
import base64
import http.client
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from stepwire_broker.api import jwt_keys, listening
from stepwire_broker.api.http_problems import HttpProblem
from stepwire_broker.api.jwt_keys import JwtError, JwtKeys
from stepwire_broker.api.jwt_tokens import TOKEN_BYTES_MAX, JwtTokens
from stepwire_broker.core.answers.scopes import Scope
from stepwire_broker.core.answers.via import Via
from stepwire_broker.core.definitions.settings import HttpSettings, JwtClaims, JwtSettings

from .running_api import TOKEN, WORKFLOW, running, settings_in
from .test_limits import until

ISSUER, AUDIENCE = "https://id.example", "stepwire"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(kid: str, alg: str, key: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.get_default_algorithms()[alg]
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))  # type: ignore[attr-defined]
    return {**found, "kid": kid, "alg": alg, "use": "sig"}


def document(*more: dict[str, Any]) -> bytes:
    return json.dumps({"keys": [*(jwk(alg, alg, key) for alg, key in KEYS.items()), *more]}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 600, "scope": "openid read submit"}
    return {name: value for name, value in {**made, **changed}.items() if value is not None}


def signed(alg: str = "ES256", key: Any = None, headers: dict[str, Any] | None = None, **changed: Any) -> bytes:
    said = {"kid": alg, **(headers or {})}
    return jwt.encode(
        claims(**changed), key or KEYS[alg], alg, {k: v for k, v in said.items() if v is not None}
    ).encode()


def by_hand(header: Any, body: Any, signature: bytes = b"x") -> bytes:
    parts = (json.dumps(header).encode(), json.dumps(body).encode(), signature)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


@pytest.fixture
def settings(tmp_path: Path) -> JwtSettings:
    (tmp_path / "jwks.json").write_bytes(document())
    return JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=str(tmp_path / "jwks.json"))


@pytest.fixture
def tokens(settings: JwtSettings) -> JwtTokens:
    keys = JwtKeys(settings)
    keys.load()
    return JwtTokens(settings, keys)


@pytest.mark.parametrize("alg", KEYS)
def test_a_token_of_the_issuer_has_its_scopes(tokens: JwtTokens, alg: str) -> None:
    for scopes in ("openid read submit", ["read", "submit", "profile"]):
        grant = asyncio.run(tokens.admit(signed(alg, scope=scopes)))
        assert (grant.author, grant.via, grant.scopes) == ("jwt:alice", Via.JWT, {Scope.READ, Scope.SUBMIT})
        assert grant.of_workers.principal == "jwt:jwt:alice"
    assert asyncio.run(tokens.admit(signed(alg, scope=None))).scopes == frozenset()


def _hs_with_public_key() -> bytes:
    """The classic confusion: the public key as the secret of an HMAC."""
    import hashlib
    import hmac

    pem = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    unsigned = by_hand({"alg": "HS256", "kid": "RS256"}, claims()).rpartition(b".")[0]
    signature = hmac.new(pem, unsigned, hashlib.sha256).digest()
    return unsigned + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


def _changed_body() -> bytes:
    head, _, signature = signed().split(b".")
    body = base64.urlsafe_b64encode(json.dumps(claims(scope="admin")).encode()).rstrip(b"=")
    return b".".join((head, body, signature))


ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "alg none": (lambda: by_hand({"alg": "none", "kid": "ES256"}, claims()), "jwt_algorithm"),
    "alg none in other letters": (lambda: by_hand({"alg": "nOnE", "kid": "ES256"}, claims()), "jwt_algorithm"),
    "HMAC with the public key": (_hs_with_public_key, "jwt_algorithm"),
    "another algorithm of the key": (
        lambda: signed("RS256", headers={"kid": "RS256", "alg": "RS512"}), "jwt_algorithm",
    ),
    "a key of another type": (lambda: signed("ES256", headers={"kid": "RS256"}), "jwt_algorithm"),
    "another issuer": (lambda: signed(iss="https://other.example"), "jwt_issuer"),
    "no issuer": (lambda: signed(iss=None), "jwt_claims"),
    "another audience": (lambda: signed(aud="console"), "jwt_audience"),
    "no audience": (lambda: signed(aud=None), "jwt_claims"),
    "expired": (lambda: signed(exp=time.time() - 60), "jwt_expired"),
    "no end": (lambda: signed(exp=None), "jwt_claims"),
    "an end that is too far": (lambda: signed(exp=time.time() + 25 * 3600), "jwt_too_long"),
    "an end that is no number": (lambda: signed(exp="later"), "jwt_malformed"),
    "an infinite end": (lambda: signed(exp=float("inf")), "jwt_malformed"),
    "an end that is not a number": (lambda: signed(exp=float("nan")), "jwt_malformed"),
    "not valid yet": (lambda: signed(nbf=time.time() + 600), "jwt_not_yet_valid"),
    "an unknown key": (lambda: signed(headers={"kid": "gone"}), "jwt_key_unknown"),
    "no kid": (lambda: signed(headers={"kid": None}), "jwt_key_unknown"),
    "a path as kid": (lambda: signed(headers={"kid": "../../dev/null"}), "jwt_key_unknown"),
    "another key": (lambda: signed("RS256", key=OTHER), "jwt_signature"),
    "a changed body": (_changed_body, "jwt_signature"),
    "no signature": (lambda: by_hand({"alg": "ES256", "kid": "ES256"}, claims(), b"\0" * 64), "jwt_signature"),
    "crit": (lambda: signed(headers={"crit": ["b64"], "b64": True}), "jwt_malformed"),
    "its own key": (lambda: signed(key=KEYS["ES256"], headers={"jwk": {"kty": "oct"}}), "jwt_header"),
    "the URL of a key": (lambda: signed(headers={"jku": "https://evil.example"}), "jwt_header"),
    "a type that is no access token": (lambda: signed(headers={"typ": "logout+jwt"}), "jwt_header"),
    "no subject": (lambda: signed(sub=None), "jwt_claims"),
    "an empty subject": (lambda: signed(sub=""), "jwt_claims"),
    "a subject with control characters": (lambda: signed(sub="a\nb"), "jwt_claims"),
    "a huge token": (lambda: signed(padding="x" * TOKEN_BYTES_MAX), "jwt_too_large"),
    "a header of nested lists": (
        lambda: base64.urlsafe_b64encode(b"[" * 5000).rstrip(b"=") + b".e30.eA", "jwt_malformed",
    ),
    "a header that is no object": (lambda: by_hand(["ES256"], {}), "jwt_malformed"),
    "no JWT": (lambda: b"a.b.c", "jwt_malformed"),
}  # fmt: skip


@pytest.mark.parametrize("about", ATTACKS)
def test_a_forged_token_is_refused_with_a_code(tokens: JwtTokens, about: str) -> None:
    make, code = ATTACKS[about]
    with pytest.raises(HttpProblem) as refused:
        asyncio.run(tokens.admit(make()))
    assert (refused.value.status, refused.value.code) == (401, code)


def test_a_token_that_was_verified_before_is_refused_after_its_end(
    tokens: JwtTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = signed()
    grant = tokens.verified(token)
    assert tokens.verified(token) is grant
    later = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    with pytest.raises(HttpProblem) as refused:
        tokens.verified(token)
    assert refused.value.code == "jwt_expired"
    assert not tokens.is_valid(grant)


def test_a_withdrawn_key_ends_its_tokens(tokens: JwtTokens, settings: JwtSettings) -> None:
    token = signed()
    grant = tokens.verified(token)
    assert tokens.is_valid(grant)
    Path(str(settings.jwks_file)).write_text(json.dumps({"keys": [jwk("new", "ES256", KEYS["ES256"])]}))
    tokens.keys.load()
    assert not tokens.is_valid(grant)
    with pytest.raises(HttpProblem) as refused:
        asyncio.run(tokens.admit(token))
    assert refused.value.code == "jwt_key_unknown"


@pytest.mark.parametrize("said", [["shop", "shop::**"], "shop shop::**"])
def test_a_token_sees_the_namespaces_of_its_claim(tokens: JwtTokens, said: Any) -> None:
    names = JwtClaims(namespaces="spaces", roles="groups")
    tokens._settings = msgspec.structs.replace(tokens._settings, claims=names)
    grant = tokens.verified(signed(spaces=said, groups=["finance"]))
    assert (grant.namespaces, grant.roles) == (("shop", "shop::**"), ("finance",))


@pytest.mark.parametrize("said", [None, [], "", {"shop": 1}, 7, ["shop", 7], ["shop bank"]])
def test_a_token_without_a_usable_claim_of_namespaces_is_refused(tokens: JwtTokens, said: Any) -> None:
    tokens._settings = msgspec.structs.replace(tokens._settings, claims=JwtClaims(namespaces="spaces"))
    with pytest.raises(HttpProblem) as refused:
        tokens.verified(signed(spaces=said))
    assert refused.value.code == "jwt_claims"


class _Issuer(http.server.BaseHTTPRequestHandler):
    content = document()
    count = 0

    def do_GET(self) -> None:
        type(self).count += 1
        if self.path != "/jwks":
            self.send_response(302)
            self.send_header("Location", "/jwks")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def issuer() -> Iterator[tuple[type[_Issuer], str]]:
    handler = type("Issuer", (_Issuer,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}/jwks"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_new_key_is_found_at_once_and_unknown_keys_are_not_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    with issuer() as (handler, url):
        keys = JwtKeys(JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=url))
        keys.load()
        tokens = JwtTokens(keys._settings, keys)
        handler.content = document(jwk("new", "RS256", OTHER))
        new = signed("RS256", key=OTHER, headers={"kid": "new"})

        async def story() -> None:
            keys._read_s -= jwt_keys.AGAIN_S_MIN
            grants = await asyncio.gather(*(tokens.admit(new) for _ in range(20)))
            assert {grant.author for grant in grants} == {"jwt:alice"}
            assert handler.count == 2
            unknown = [signed(headers={"kid": f"k{n}"}) for n in range(20)]
            answers = await asyncio.gather(*map(tokens.admit, unknown), return_exceptions=True)
            assert all(isinstance(each, HttpProblem) for each in answers)
            assert handler.count == 2

        asyncio.run(story())
        with pytest.raises(JwtError, match="cannot be read"):  # a redirection could lead anywhere
            JwtKeys(JwtSettings(jwks_url=url.replace("/jwks", "/moved"))).load()


def test_keys_that_cannot_be_read_again_stay_for_the_longest_life_of_a_token(
    tokens: JwtTokens, settings: JwtSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(str(settings.jwks_file)).write_text("half")
    asyncio.run(tokens.keys._read())
    assert asyncio.run(tokens.admit(signed())).author == "jwt:alice"
    monkeypatch.setattr(jwt_keys, "STALE_S", -1.0)
    asyncio.run(tokens.keys._read())
    assert tokens.keys.lookup("ES256") is None


def test_a_document_without_keys_withdraws_all_of_them(tokens: JwtTokens, settings: JwtSettings) -> None:
    grant = tokens.verified(signed())
    Path(str(settings.jwks_file)).write_text('{"keys": []}')
    asyncio.run(tokens.keys._read())
    assert not tokens.is_valid(grant)


def test_keys_that_are_read_again_unchanged_end_no_stream(tokens: JwtTokens, settings: JwtSettings) -> None:
    grant = tokens.verified(signed())
    Path(str(settings.jwks_file)).write_bytes(document(jwk("new", "RS256", OTHER)))
    asyncio.run(tokens.keys._read())
    assert tokens.keys.lookup("new") is not None
    assert tokens.is_valid(grant)


@contextmanager
def watched(keys: JwtKeys) -> Iterator[None]:
    """The keys are watched in a thread, as by a broker."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    watching = asyncio.run_coroutine_threadsafe(keys.watch(), loop)
    try:
        yield
    finally:
        watching.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_key_withdrawn_from_the_file_ends_its_streams_in_a_running_broker(
    tmp_path: Path, settings: JwtSettings
) -> None:
    tmp_path.chmod(0o700)
    of_broker = settings_in(tmp_path)
    of_broker = msgspec.structs.replace(of_broker, http=msgspec.structs.replace(of_broker.http, jwt=settings))
    with running(tmp_path, of_broker) as api:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
        headers = {"Authorization": f"Bearer {signed().decode()}"}
        connection.request("GET", "/v1/events", headers=headers)
        stream = connection.getresponse()
        assert stream.status == 200
        replaced = tmp_path / "jwks.new"
        replaced.write_bytes(json.dumps({"keys": [jwk("new", "ES256", KEYS["ES256"])]}).encode())
        replaced.replace(str(settings.jwks_file))
        with pytest.raises(http.client.IncompleteRead):
            stream.read()  # the broker ends the stream
        connection.close()
        assert api.call("GET", "/readyz", headers=headers).code == "jwt_key_unknown"


def test_a_key_withdrawn_from_the_url_is_noticed_when_the_url_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jwt_keys.REFRESH_S <= 300
    monkeypatch.setattr(jwt_keys, "CHECK_S", 0.01)
    with issuer() as (handler, url):
        keys = JwtKeys(JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=url))
        keys.load()
        handler.content = json.dumps({"keys": [jwk("new", "ES256", KEYS["ES256"])]}).encode()
        with watched(keys):
            keys._read_s -= jwt_keys.REFRESH_S
            until(lambda: keys.lookup("ES256") is None)
        assert handler.count == 2


WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"x" * (jwt_keys.DOCUMENT_BYTES_MAX + 1),
        json.dumps({"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}).encode(),
        json.dumps({"keys": [jwk("weak", "RS256", WEAK)]}).encode(),
    ],
)  # fmt: skip
def test_a_document_without_usable_keys_is_refused_at_the_start(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(content)
    with pytest.raises(JwtError):
        JwtKeys(JwtSettings(jwks_file=str(tmp_path / "jwks.json"))).load()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"issuer": None}, r"http\.jwt\.issuer is not set"),
        ({"audience": None}, r"http\.jwt\.audience is not set"),
        ({"jwks_url": "https://id.example/jwks"}, "one of jwks_url and jwks_file"),
        ({"jwks_file": None, "jwks_url": "http://id.example/jwks"}, "must begin with https://"),
        ({"jwks_file": "nowhere"}, "nowhere cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    settings: JwtSettings, changed: dict[str, Any], text: str
) -> None:
    with pytest.raises(listening.ListenError, match=text):
        listening.open_jwt(HttpSettings(jwt=msgspec.structs.replace(settings, **changed)))


def test_a_missing_extra_is_named_at_the_start(settings: JwtSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(listening.ListenError, match=r"pip install 'stepwire\[broker,jwt\]'"):
        listening.open_jwt(HttpSettings(jwt=settings))


def test_a_signed_token_is_a_principal_of_the_api(tmp_path: Path, settings: JwtSettings) -> None:
    tmp_path.chmod(0o700)
    of_broker = settings_in(tmp_path)
    of_broker = msgspec.structs.replace(of_broker, http=msgspec.structs.replace(of_broker.http, jwt=settings))
    with running(tmp_path, of_broker) as api:

        def call(token: bytes, path: str = "/readyz", body: Any = None) -> Any:
            return api.call(
                "GET" if body is None else "POST", path, body, {"Authorization": f"Bearer {token.decode()}"}
            )

        assert call(signed()).status == 200
        assert call(signed(), "/v1/workflows", WORKFLOW).code == "scope_missing"
        assert call(signed(scope="admin"), "/v1/workflows", WORKFLOW).status == 201
        assert call(signed(scope="")).status == 403
        assert call(signed(exp=time.time() - 60)).code == "jwt_expired"
        assert call(signed("RS256", key=OTHER)).code == "jwt_signature"
        assert api.call("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        task = call(signed(), "/v1/tasks", {"workflow": "order"}).json["task_id"]
        assert call(signed(scope="operate read"), f"/v1/tasks/{task}/cancel", {"reason": "a test"}).status < 300
        assert "jwt:alice" in json.dumps(call(signed(), f"/v1/tasks/{task}").json)
