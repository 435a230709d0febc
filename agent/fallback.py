"""Several authors in a row as one: when one refuses, the next is asked. Whose turn it is follows from the record."""

from __future__ import annotations

from collections.abc import Sequence

from coda_synth.agent.provider import Provider, Reply, Request, by_prompt
from coda_synth.runs.record import Attempt


class Fallback:
    """The first answers until it refuses, then the second, and so on; the last one stays."""

    def __init__(self, authors: Sequence[Provider]) -> None:
        self.authors = tuple(authors)
        self.name, self.model = self.authors[0].name, self.authors[0].model
        self.by_prompt = all(map(by_prompt, self.authors))

    def propose(self, request: Request) -> Reply:
        return serving(self, request.attempts).propose(request)


def serving(provider: Provider, attempts: Sequence[Attempt]) -> Provider:
    """The author who will answer next."""
    if not isinstance(provider, Fallback):
        return provider
    refused = sum(a.outcome == "refused" for a in attempts)
    return provider.authors[min(refused, len(provider.authors) - 1)]


def every(provider: Provider) -> tuple[Provider, ...]:
    """All authors who may be asked."""
    return provider.authors if isinstance(provider, Fallback) else (provider,)
