"""What the routes of a lead serve, put together from its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

from server.api.served import DrafterHealth, ExactnessHealth, GateHealth, Health, ModelCard, Served
from server.cache.named import NamedFiles
from server.engine.thread import EngineThread
from server.llama.backend import Vocabulary
from server.llama.llamacpp import LlamaBackend
from server.recollection import of_model, recall
from server.sampling.constraint import Constraint
from server.settings import LeadSettings
from server.site import Site
from server.speculation.speculator import Speculator
from server.text.template import ChatTemplate
from server.tiers import MIB, fingerprint


def served_by(
    settings: LeadSettings, site: Site, backend: LlamaBackend, engine: EngineThread, proposer: Speculator
) -> Served:
    vocabulary = backend.vocab
    template = ChatTemplate(
        backend.chat_template,
        bos=_special(vocabulary, vocabulary.bos),
        eos=_special(vocabulary, vocabulary.eos),
    )
    card = ModelCard(
        settings.name, int(time.time()), backend.n_ctx, backend.n_params, backend.description, settings.note
    )

    probed = recall("probe", of_model(settings.model, site.n_threads, settings.gpu_layers))
    exactness = ExactnessHealth(settings.exactness, settings.stable_width, probed)

    def health() -> Health:
        return Health(
            status="stuck" if engine.stuck() else "ok",
            slots_total=settings.parallel,
            slots_busy=engine.engine.n_active,
            queued=engine.engine.n_waiting,
            step_python_us=engine.engine.step_overhead_us(),
            drafters=_drafters(proposer),
            exactness=exactness,
            draft_mode="async" if site.draft_model is None else "sync",
            gate=GateHealth(
                proposer.pace.rate,
                {rows: seconds * 1e3 for rows, seconds in proposer.costs.table().items()},
                proposer.widths.best,
                {rows: seconds * 1e3 for rows, seconds in proposer.widths.steady.items()},
            ),
        )

    return Served(
        engine,
        vocabulary,
        template,
        card,
        settings.sampling,
        health,
        f"duo-{version('duo')}",
        grammars=partial(_compile_gbnf, vocabulary),
        command=engine.command,
        slot_files=_slot_files(settings, backend),
    )


def _slot_files(settings: LeadSettings, backend: LlamaBackend) -> NamedFiles | None:
    if settings.cache_dir is None:
        return None
    return NamedFiles(
        settings.cache_dir / "slots",
        budget_bytes=settings.cache_disk << MIB,
        fingerprint=fingerprint(settings.model, backend.state_format),
    )


def _compile_gbnf(vocabulary: Vocabulary, text: str) -> Callable[[], Constraint]:
    from server.grammar.constraint import compile_gbnf  # llguidance loads when somebody needs it

    return compile_gbnf(vocabulary, text)


def _drafters(proposer: Speculator) -> list[DrafterHealth]:
    return [
        DrafterHealth(
            record.presence.id,
            record.presence.model,
            "refused" if record.refusal else "accepted",
            record.refusal,
            dict(record.counts),
        )
        for record in proposer.drafters()
    ]


def _special(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.piece(token, special=True).decode(errors="replace")
