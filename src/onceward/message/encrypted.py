"""Define message types whose bodies a codec encrypts, from the sender to the handler."""

from __future__ import annotations

import base64
import json
from typing import Any, ClassVar, Final, Protocol

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from onceward.errors import InvalidArgument
from onceward.message.body import Msg

KEY: Final = "key_id"
DATA: Final = "encrypted"


class BodyCodec(Protocol):
    """
    Encrypts and decrypts bodies, with keys that have ids.

    *context* is the type of the message: authenticate it with the data, so that the body of one
    type is not taken for that of another. A body that is sent with ``key=`` must be encrypted the
    same way each time, as AES-SIV does: otherwise the second call has another body, a ``Conflict``.
    """

    def encrypt(self, plain: bytes, context: bytes) -> tuple[str, bytes]:
        """Return the id of the current key, and the data encrypted with it."""
        ...

    def decrypt(self, key_id: str, data: bytes, context: bytes) -> bytes:
        """Return the plain data; raise any exception if the key is unknown or does not fit."""
        ...


class EncryptedMsg(Msg):
    """
    A message type whose body is encrypted in files, parcels, backups and logs.

    ``class Payment(EncryptedMsg, type="payment", codec=codec)``: the codec encrypts the whole body
    when it is sent, and decrypts it for the handler, for ``message.body`` of this class, and for
    replies and results of steps that are read as it. Readers without the class see
    ``{"key_id": …, "encrypted": …}``. Type, topic, headers and keys of a message are not encrypted.
    A body that is not encrypted is accepted as well.

    Raises:
        InvalidArgument: neither the class nor one that it inherits from has a codec.

    """

    __codec__: ClassVar[BodyCodec | None] = None

    def __init_subclass__(cls, *, codec: BodyCodec | None = None, **kwargs: Any) -> None:
        """Take the codec of the class, or of the one that it inherits from."""
        super().__init_subclass__(**kwargs)
        if codec is not None:
            cls.__codec__ = codec
        if cls.__codec__ is None:
            raise InvalidArgument(f"{cls.__name__} has no codec: class {cls.__name__}(…, codec=…)")

    @model_serializer(mode="wrap", when_used="json")
    def _encrypt(self, plain: SerializerFunctionWrapHandler) -> dict[str, str]:
        codec = _codec_of(type(self))
        text = json.dumps(plain(self), ensure_ascii=False, separators=(",", ":")).encode()
        key_id, data = codec.encrypt(text, self.__message_type__.encode())
        return {KEY: key_id, DATA: base64.b64encode(data).decode()}

    @model_validator(mode="before")
    @classmethod
    def _decrypt(cls, body: Any) -> Any:
        if not is_encrypted(body):
            return body
        try:
            data = base64.b64decode(body[DATA], validate=True)
            context = cls.__message_type__.encode()
            return json.loads(_codec_of(cls).decrypt(body[KEY], data, context))
        except Exception as error:
            told = f"the codec cannot decrypt a body of the key {body[KEY]!r}"
            raise ValueError(f"{told}: {type(error).__name__}") from error


def is_encrypted(body: object) -> bool:
    """Return whether a body is the encrypted form of another one."""
    return (
        isinstance(body, dict)
        and body.keys() == {KEY, DATA}
        and all(isinstance(value, str) for value in body.values())
    )


def _codec_of(kind: type[EncryptedMsg]) -> BodyCodec:
    assert kind.__codec__ is not None  # noqa: S101 - no subclass without one is declared
    return kind.__codec__
