"""The gateway's /metrics: its own measurements, and every engine's own beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from serve_apps.exposition import Exposition
from serve_apps.fleet import Replica

logger = logging.getLogger(__name__)

# Well below the 10 s after which Prometheus gives up.
_LIMIT = aiohttp.ClientTimeout(total=3)
_UP = """\
# HELP rayscend_engine_up Whether the engine answered on its own /metrics.
# TYPE rayscend_engine_up gauge
rayscend_engine_up %d
"""


async def scrape(replicas: Iterable[Replica], own: str, gateway: str) -> str:
    """Ask the engines of `replicas` all at once, and put the text `own` of a gateway before them.

    An engine that does not answer with metrics holds nobody up: `rayscend_engine_up` tells.
    """
    page = Exposition()
    page.add(own, {"gateway": gateway})
    async with aiohttp.ClientSession(
        headers={"accept-encoding": "identity"}, timeout=_LIMIT, raise_for_status=True
    ) as session:

        async def ask(replica: Replica) -> None:
            labels = {"model": replica.record.model, "replica": replica.id}
            try:
                async with session.get(f"{replica.record.url}/metrics") as answer:
                    text = await answer.text()
            except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
                logger.info("replica %s gives no metrics: %s", replica.id, type(error).__name__)
                page.add(_UP % 0, labels)
            else:
                page.add(_UP % 1 + text, labels)

        await asyncio.gather(*(ask(replica) for replica in replicas if replica.has_engine))
    return page.text()
