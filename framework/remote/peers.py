"""Drafters at a TCP address: handshake of facts, a shared secret, and a worker that serves one target at a time.

The secret is proved by an HMAC of random challenges and is never sent. It authenticates the beginning of a connection;
nothing is encrypted.
"""

import errno
import hashlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Callable

import numpy as np
from transformers import PreTrainedTokenizerBase

from framework.core.draft import SamplingScheme, Shape
from framework.core.drafter import Drafter
from framework.core.option_error import OptionError, OtherTargetError, UnreachableError
from framework.models.pretrained import num_ids
from framework.models.target import Target
from framework.remote.serialization import MalformedMessage, as_json, expect, from_json
from framework.remote.transport import MOST_BYTES, Link, Transport, WorkerLost
from framework.remote.worker import (
    SECONDS_TO_BE_ASKED,
    SECONDS_TO_LOAD,
    WITHOUT_STATES,
    Kind,
    TargetFacts,
    Worker,
    answer_requests,
    built,
    declarations,
    declare,
    error_of,
    name_of,
    report,
)

PROTOCOL = 1  # version of the messages
SECRET = "OUTRIDER_SECRET"  # environment variable
LEAST_SECRET = 16  # characters
LOCAL = ("127.0.0.1", "::1", "localhost")
SECONDS_TO_GREET = 10.0
MOST_BYTES_TO_GREET = 2**16  # before a peer has proved the secret
NONCE = 32  # bytes of a challenge


def secret_of_environment() -> bytes:
    """The shared secret from the environment; empty: none.

    Raises:
        PermissionError: it is short enough to be guessed.
    """
    secret = os.environ.get(SECRET, "")
    if secret and len(secret) < LEAST_SECRET:
        raise PermissionError(f"{SECRET} is too short; allowed: at least {LEAST_SECRET} characters, in the environment")
    return secret.encode()


def digest_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits that identify a tokenizer's vocabulary."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]


def connect(
    address: str, target: Target, *, timeout: float, link: Link, secret: bytes
) -> tuple[Transport, SamplingScheme, Shape]:
    """Connect to a worker's address, and let it build its drafter for a target.

    Args:
        address: HOST:PORT of a worker in `serve`.
        target: the target; the worker gets its sizes, fingerprint and start tokens, and the digest of its tokenizer.
        timeout: seconds that the worker may be silent after loading.
        link: simulated link to the worker.
        secret: the shared secret; empty: none.

    Returns:
        this end of the transport; the drafter's sampling scheme; its shape.

    Raises:
        ValueError, OSError: the address is none, nothing listens there, the secrets or facts differ, or the drafter
            cannot be built.
        MalformedMessage: the other program is no worker.
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise OptionError(
            "address", address, "HOST:PORT, such as 127.0.0.1:7000, or null for a process on this machine"
        )
    running = "the address of a running `serve_drafter`"
    try:
        connected = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)
    except (OSError, UnicodeError) as error:  # a name that cannot be one is a UnicodeError
        raise UnreachableError("address", address, running, f"which cannot be reached ({error})") from error
    transport = _transport(connected, link)
    try:
        _prove(transport, secret)
        facts = TargetFacts.of(target).as_json_facts() | {
            "protocol": PROTOCOL,
            "tokenizer": digest_of(target.tokenizer),
        }
        transport.send(Kind.HELLO, [as_json(facts)])
        transport.timeout = SECONDS_TO_LOAD
        scheme, shape = declarations(_answer(transport, Kind.FACTS))
    except BaseException as error:
        transport.close()
        if isinstance(error, WorkerLost):
            fault = f"which does not answer ({error}): another program, or a worker that serves another target"
            raise UnreachableError("address", address, running, fault) from error
        raise
    transport.timeout, transport.most_bytes = timeout, MOST_BYTES
    transport.sent = transport.received = 0
    return transport, scheme, shape


def listen(host: str, port: int, *, secret: bytes) -> socket.socket:
    """Socket that listens on an address; port 0: any free one.

    Raises:
        OptionError: the address can be reached from other machines and there is no secret, or it cannot be used.
    """
    if host not in LOCAL and not secret:
        allowed = f"127.0.0.1, or any address with a secret in the environment variable {SECRET}"
        raise OptionError("host", host, allowed)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            raise OptionError("port", port, "a free port of this machine", f"which cannot be used ({error})") from error
        raise OptionError("host", host, "an address of this machine", f"which is none ({error})") from error


def check_drafter_of(factory: Callable[..., Drafter], tokenizer: PreTrainedTokenizerBase) -> None:
    """Build the drafter once, for a target with this tokenizer, so that a wrong option ends the command.

    Raises:
        ValueError, OSError: it cannot be built, or cannot draft for a target in another process.
    """
    refused: OtherTargetError | None = None
    for text_start in ([], [0]):  # a target without an encoder, then one with an encoder
        try:
            built(factory, TargetFacts(tokenizer, num_ids(tokenizer), "", 2**30, text_start, None))
            return
        except OtherTargetError as error:
            if error.made_by:
                fault = "which is trained for one target and reads its states, in another process"
                raise OptionError("drafter", name_of(factory), WITHOUT_STATES, fault) from error
            refused = error
    assert refused is not None
    raise refused


def serve(
    listening: socket.socket,
    factory: Callable[..., Drafter],
    tokenizer: PreTrainedTokenizerBase,
    *,
    secret: bytes,
    tell: Callable[[str], None],
) -> None:
    """Draft for one target after another until the socket is closed.

    Args:
        listening: from `listen`.
        factory: builds the drafter by `factory(target=...)`, anew for every connection.
        tokenizer: the targets' tokenizer.
        secret: the shared secret; empty: none.
        tell: gets a line for every connection and for its end.

    Raises:
        OSError: no connection can be accepted any more.
    """
    while True:
        try:
            connected, peer = listening.accept()
        except ConnectionAbortedError:  # by the peer, before it was accepted
            continue
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):  # the socket is closed, or shut down
                return
            raise
        name = f"{peer[0]}:{peer[1]}"
        with connected:
            try:
                tell(f"{name} connected")
                tell(f"{name}: {_serve_peer(_transport(connected, None), factory, tokenizer, secret)}")
            except OSError as error:  # also a lost or malformed connection
                tell(f"{name}: {error}")


def _serve_peer(
    transport: Transport, factory: Callable[..., Drafter], tokenizer: PreTrainedTokenizerBase, secret: bytes
) -> str:
    """Greet one peer and answer its requests; returns why it ended, if not by the end of the connection."""
    try:
        _check_proof(transport, secret)
        drafter, vocabulary_size = _built_for(_answer(transport, Kind.HELLO), factory, tokenizer)
    except WorkerLost:
        raise
    except Exception as error:  # of any kind; raised in the other process
        report(transport, error, name_of(factory))
        return str(error).split("\n")[0]
    declare(transport, drafter)
    transport.timeout, transport.most_bytes = SECONDS_TO_BE_ASKED, MOST_BYTES
    return answer_requests(transport, Worker(drafter, vocabulary_size))


def _transport(connected: socket.socket, link: Link | None) -> Transport:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request is one small message
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a vanished machine ends the connection
    transport = Transport(connected, timeout=SECONDS_TO_GREET, link=link)
    transport.most_bytes = MOST_BYTES_TO_GREET
    return transport


def _answer(transport: Transport, wanted: Kind) -> list[np.ndarray]:
    """Arrays of the next message, which must be of one kind; raises the error of an ERROR message."""
    kind, arrays = transport.receive()
    if kind == Kind.ERROR:
        raise error_of(arrays)
    if kind != wanted:
        raise MalformedMessage(f"kind {kind} is no {wanted.name}")
    return arrays


def _prove(transport: Transport, secret: bytes) -> None:
    """Prove the secret to a worker, and then check the worker's proof.

    Raises:
        PermissionError: the worker has another secret, or one of the two has none.
    """
    challenges = _exchange_challenges(transport, secret)
    if not secret:
        return
    transport.send(Kind.HELLO, [_proof(secret, b"target", *reversed(challenges))])
    _check(_answer(transport, Kind.HELLO), _proof(secret, b"worker", *challenges))


def _check_proof(transport: Transport, secret: bytes) -> None:
    """Check another process's proof of the secret, and then prove it in turn; raises as `_prove`."""
    challenges = _exchange_challenges(transport, secret)
    if not secret:
        return
    _check(_answer(transport, Kind.HELLO), _proof(secret, b"target", *challenges))
    transport.send(Kind.HELLO, [_proof(secret, b"worker", *reversed(challenges))])


def _exchange_challenges(transport: Transport, secret: bytes) -> tuple[bytes, bytes]:
    """Our random challenge and the other process's."""
    ours = secrets.token_bytes(NONCE)
    transport.send(Kind.HELLO, [np.frombuffer(ours, np.uint8), np.array([bool(secret)], np.uint8)])
    arrays = _answer(transport, Kind.HELLO)
    expect(arrays, (NONCE,), (1,))
    if bool(arrays[1][0]) != bool(secret):
        raise PermissionError(f"only one of the two processes has a secret: set {SECRET} in both or in neither")
    return ours, arrays[0].tobytes()


def _proof(secret: bytes, role: bytes, checker: bytes, prover: bytes) -> np.ndarray:
    """Proof for the challenges of checker and prover; the role keeps a proof from being sent back to its prover."""
    return np.frombuffer(hmac.digest(secret, role + checker + prover, "sha256"), np.uint8)


def _check(arrays: list[np.ndarray], proof: np.ndarray) -> None:
    expect(arrays, proof.shape)
    if not hmac.compare_digest(arrays[0].tobytes(), proof.tobytes()):
        raise PermissionError(f"the two processes have different secrets: set {SECRET} to the same in both")


def _built_for(
    arrays: list[np.ndarray], factory: Callable[..., Drafter], tokenizer: PreTrainedTokenizerBase
) -> tuple[Drafter, int]:
    """The drafter for the target with the facts in a HELLO, and the size of its vocabulary.

    Raises:
        ValueError, OSError: the facts do not fit, or the drafter cannot be built.
    """
    expect(arrays, (None,))
    sent = from_json(arrays[0])
    facts = TargetFacts.from_json(sent, tokenizer)
    for what, wanted in (("protocol", PROTOCOL), ("tokenizer", digest_of(tokenizer))):
        if sent.get(what) != wanted:
            raise OptionError(f"the target's {what}", sent.get(what), f"{wanted}, that of the worker")
    if facts.vocabulary_size > (most := num_ids(tokenizer)):
        raise OptionError("the target's vocabulary_size", facts.vocabulary_size, f"at most {most}, that of the worker")
    return built(factory, facts), facts.vocabulary_size
