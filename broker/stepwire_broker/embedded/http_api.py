"""The HTTP API of an embedded broker, on the application's event loop: the same server as that of `stepwire serve`."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from stepwire_broker.core.definitions.settings import HttpSettings
from stepwire_broker.engine import CannotStart, Engine

if TYPE_CHECKING:
    from stepwire_broker.api.server import Server

# The modules of the API are imported at the start, because most applications embed a broker without HTTP.


class HttpApi:
    """Serves from `start` to `stop`. The engine starts first: of several processes, the one with the file serves."""

    def __init__(self, settings: HttpSettings, own_token_file: Path, *, is_strict: bool = False) -> None:
        self.url: str | None = None
        self.token_file = Path(settings.tokens_file or own_token_file)
        self._settings = settings
        self._is_strict = is_strict
        self._is_own = self.token_file == own_token_file
        self._listener: socket.socket | None = None
        self._server: Server | None = None

    async def start(self, engine: Engine) -> None:
        """Serve the API of this engine. Raises CannotStart when the address or the token file cannot be used."""
        from stepwire_broker.api.listening import ListenError, Listeners, certificates_of, listen, open_jwt
        from stepwire_broker.api.server import Server
        from stepwire_broker.api.token import TokenError, Tokens, open_token_file

        try:
            # An embedded broker has no Unix socket: with `is_strict`, its own token, which never expires, is refused.
            tokens = open_token_file(self.token_file) if self._is_own else Tokens(self.token_file)
            certificates, jwt = certificates_of(self._settings), open_jwt(self._settings)
            if self._is_strict:
                tokens = Tokens(self.token_file, is_strict=True)
            self._listener = listen(self._settings, is_strict=self._is_strict)
        except (TokenError, ListenError) as error:
            raise CannotStart(f"the HTTP API of the broker cannot start: {error}") from None
        self._server = Server(engine, tokens, Listeners(self._listener, certificates=certificates, jwt=jwt))
        await self._server.start()
        self.url = self._server.url

    def stop_waiting(self) -> None:
        """End the long polls of workers, because the broker drains."""
        if self._server is not None:
            self._server.stop_waiting()

    async def stop(self) -> None:
        """Accept no further requests, and let open requests finish."""
        if self._server is not None:
            await self._server.stop()
        if self._listener is not None:
            self._listener.close()
