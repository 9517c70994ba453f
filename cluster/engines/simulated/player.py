"""Plays the simulated engine's sequences in real time, and lets the failure switches interfere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from cluster.engines.simulated.answers import Choice
from cluster.engines.simulated.engine import Switches
from cluster.engines.simulated.model import Job, Scheduler, Settings
from cluster.engines.simulated.requests import GenerationRequest
from cluster.engines.simulated.text import END, StopStrings, answer

OnToken = Callable[[Choice], Awaitable[None]]

# Long enough for the last token to leave through the socket, short enough to be "at once".
_FLUSH_S = 0.02


class Player:
    """Made inside the running event loop, whose clock it keeps."""

    def __init__(self, settings: Settings, switches: Switches) -> None:
        self._clock = asyncio.get_running_loop().time
        self._flowing = asyncio.Event()
        self.settings = settings
        self.scheduler = Scheduler(settings, self._clock)
        self.set(switches)

    def set(self, switches: Switches) -> None:
        self.switches = switches
        self._tokens_to_live = switches.die_after_tokens
        if switches.stall:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def play(
        self, choices: Sequence[Choice], request: GenerationRequest, on_token: OnToken
    ) -> None:
        """Answer `request`: fill each of `choices`, and await `on_token` after each token.

        A cancelled call takes its sequences out of the engine at once.
        """
        if len(choices) == 1:
            await self._play_one(choices[0], request, on_token)
            return
        async with asyncio.TaskGroup() as group:
            for choice in choices:
                group.create_task(self._play_one(choice, request, on_token))

    async def _play_one(
        self, choice: Choice, request: GenerationRequest, on_token: OnToken
    ) -> None:
        started = asyncio.Event()
        job = Job(choice.prompt, self._length(choice, request), started.set)
        self.scheduler.submit(job)
        try:
            await started.wait()
            choice.cached = job.cached
            await self._yield_tokens(job, choice, request, on_token)
        finally:
            self.scheduler.finish(job, choice.finish_reason or "abort")

    async def _yield_tokens(
        self, job: Job, choice: Choice, request: GenerationRequest, on_token: OnToken
    ) -> None:
        itl, clock = self.settings.itl, self._clock
        stops = StopStrings(request.stop, request.include_stop_str_in_output)
        for token in answer(choice.prompt, self.settings.seed, choice.index % request.n):
            due = job.first_at + len(job.output) * itl
            await asyncio.sleep(max(0.0, due - clock()))
            if not self._flowing.is_set():
                await self._sit_out(job)
            job.output.append(token.id)
            choice.tokens.append(token)
            self.scheduler.count_token(job)
            text = token.text
            if token is END and not request.ignore_eos:
                choice.finish_reason = "stop"
            elif len(job.output) == job.max_tokens:
                choice.finish_reason = "length"
            if request.stop:
                text, choice.stop_reason = stops.feed(text)
                if choice.stop_reason is not None:
                    choice.finish_reason = "stop"
                elif choice.finish_reason:
                    text += stops.flush()
            choice.texts.append(text)
            self._live_on()
            await on_token(choice)
            if choice.finish_reason:
                return

    def _length(self, choice: Choice, request: GenerationRequest) -> int:
        room = self.settings.context - len(choice.prompt)
        return min(request.length() or self.settings.default_max_tokens, room)

    async def _sit_out(self, job: Job) -> None:
        """Wait for the end of a stall; the job's schedule moves on by as long."""
        since = self._clock()
        await self._flowing.wait()
        job.first_at += self._clock() - since

    def _live_on(self) -> None:
        """Count down to the end of this process; the token that is counted still leaves it."""
        if self._tokens_to_live == 0:
            return
        self._tokens_to_live -= 1
        if self._tokens_to_live == 0:
            self._flowing.clear()
            asyncio.get_running_loop().call_later(_FLUSH_S, die, self.switches.die_with)


def die(code: int) -> None:
    """End this process with exit code `code`, or by signal `-code` if that is negative."""
    if code < 0:
        os.kill(os.getpid(), -code)
    else:
        os._exit(code)
