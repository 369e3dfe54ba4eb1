"""The Python class: QEfficient's ``QEFFAutoModelForCausalLM``, for every target.

The same names, parameters, defaults and errors as documented there, plus ``target=`` and
``precision=``. It only collects parameters and calls the pipeline; a model is neither loaded nor
traced before that is needed.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps import combinations, vendor
from qeff.apps.exported import compile_onnx, export_onnx
from qeff.apps.pipeline import build, cached_container
from qeff.core.errors import OptionNotSupported, OptionTypeError
from qeff.core.options import CompileOptions, ExportOptions, TextFile
from qeff.sources import Location, locate, open_source

if TYPE_CHECKING:
    from qeff.apps.kept import Kept, Opening
    from qeff.apps.results import CloudAI100ExecInfo
    from qeff.generate import Constraint, Delta, Result, SamplingParams, SpeculationConfig


_PARAMETERS = (
    "target",
    "precision",
    "kv_precision",
    "precision_overrides",
    "calibration",
    "calibration_file",
    "prefill_seq_len",
    "ctx_len",
    "batch_size",
    "full_batch_size",
    "kv_cache_batch_size",
    "num_devices",
    "mxfp6_matmul",
    "mxint8_kv_cache",
)


class QEFFAutoModelForCausalLM:
    """A decoder from Hugging Face: ``from_pretrained``, then ``compile``, then ``generate``.

    ``compile`` takes, besides QEfficient's parameters: ``target``, the native engine ("cpu") unless
    told; ``precision`` of the weight matrices, where "auto" keeps packed ones as they are;
    ``precision_overrides``, a precision for each pattern of weight names; ``calibration`` and
    ``calibration_file``, how coarse matrices are rounded; and ``kv_precision`` of the cache. The
    words are those of the command line.
    """

    def __init__(
        self,
        model: Any,
        continuous_batching: bool = False,
        qaic_config: Mapping[str, Any] | None = None,
        max_seq_len_cached: int | None = None,
    ) -> None:
        """Take a transformers model that is in memory; ``from_pretrained`` needs no such copy."""
        self.qaic_config = combinations.check_qaic_config(qaic_config)
        self.continuous_batching = bool(continuous_batching)
        self.max_seq_len_cached = max_seq_len_cached
        if isinstance(model, Location):
            self._location = model
        else:
            from qeff.apps.in_memory import keep_model

            self._location = keep_model(model)
        if self._has_heads:
            from qeff.sources.speculator import with_heads

            self._location = with_heads(self._location)
        self.onnx_path: Path | None = None
        self.qpc_path: Path | None = None
        self.num_speculative_tokens: int | None = None  # of the last compile; a default
        self._opened: Kept | None = None
        self._results: tuple[Result, ...] = ()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path | None = None,
        continuous_batching: bool = False,
        qaic_config: Mapping[str, Any] | None = None,
        layerwise: bool = False,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        trust_remote_code: bool = False,
        gguf_file: str | None = None,
        max_seq_len_cached: int | None = None,
        **loading: Any,
    ) -> QEFFAutoModelForCausalLM:
        """Find a checkpoint: a folder, a ``.gguf`` file, a hub id, or the built-in model when None.

        ``layerwise`` and the arguments that say how Hugging Face should load are accepted and
        change nothing: weights are always mapped and read one by one.
        """
        combinations.check_names("argument", loading, combinations.LOADING)
        ref = pretrained_model_name_or_path
        if gguf_file is not None:
            ref = Path(ref or ".") / gguf_file
        location = locate(
            ref,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            trust_remote_code=trust_remote_code,
        )
        return cls(location, continuous_batching, qaic_config, max_seq_len_cached)

    @property
    def _has_heads(self) -> bool:
        return self.qaic_config.get("speculative_model_type") == "turbo"

    @property
    def model_name(self) -> str:
        """A short name, such as ``SmolLM2-135M-Instruct``."""
        return self._location.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The contents of the checkpoint's config.json."""
        return open_source(self._location).config

    def __repr__(self) -> str:
        parts = [self.model_name]
        parts += ["continuous batching"] if self.continuous_batching else []
        parts += [f"graph {self.onnx_path}"] if self.onnx_path else []
        parts += [f"container {self.qpc_path}"] if self.qpc_path else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def export(
        self,
        export_dir: str | Path | None = None,
        prefill_only: bool | None = False,
        prefill_seq_len: int | None = None,
        num_cores: int = 16,
        moe_prefill_packed_chunk_size: int = 256,
        layerwise: bool = False,
        layerwise_window_size: int = 1,
        kv_cache_prefix: str | None = None,
        dynamo: bool = False,
        use_onnx_subfunctions: bool = False,
        offload_pt_weights: bool = True,
        enable_chunking: bool = False,
        retain_full_kv: bool | None = False,
        decode_only: bool = False,
    ) -> str:
        """Write the ONNX graph and return its path; ``export_dir`` None keeps it in the cache.

        One graph serves prefill and decode at every length, so that the other parameters change
        nothing.
        """
        if decode_only:
            raise OptionNotSupported("decode_only is not offered", "every graph serves both")
        out = Path(export_dir) if export_dir is not None else None
        self.onnx_path = export_onnx(self._location, self._export_options(), out=out)
        return str(self.onnx_path)

    def compile(
        self,
        onnx_path: str | Path | None = None,
        compile_dir: str | Path | None = None,
        *,
        target: str | None = None,
        precision: str | None = None,
        kv_precision: str | None = None,
        precision_overrides: Mapping[str, str] | None = None,
        calibration: str = "auto",
        calibration_file: str | Path | None = None,
        prefill_seq_len: int = 32,
        ctx_len: int = 128,
        batch_size: int = 1,
        full_batch_size: int | None = None,
        kv_cache_batch_size: int | None = None,
        num_devices: int = 1,
        mxfp6_matmul: bool = False,
        mxint8_kv_cache: bool = False,
        num_speculative_tokens: int | Sequence[int] | None = None,
        comp_ctx_lengths_prefill: Sequence[int] | None = None,
        comp_ctx_lengths_decode: Sequence[int] | None = None,
        prefill_only: bool | None = None,
        kv_cache_prefix: str | None = None,
        **compiler_options: Any,
    ) -> str:
        """Compile for a target and return the container's path; nothing is made twice."""
        shape = combinations.Shape(
            self.continuous_batching,
            combinations.with_ccl(self.qaic_config, compiler_options),
            prefill_seq_len,
            full_batch_size,
            kv_cache_batch_size,
            num_speculative_tokens,
            comp_ctx_lengths_decode,
            prefill_only,
            kv_cache_prefix,
            comp_ctx_lengths_prefill,
            ctx_len,
        )
        mxfp6 = "mxfp6" if compiler_options.pop("mxfp6", False) or mxfp6_matmul else None
        mxint8 = "mxint8" if compiler_options.pop("mxint8", False) or mxint8_kv_cache else None
        given = vendor.given_options(compiler_options, _PARAMETERS) | shape.vendor_options()
        options = CompileOptions(
            **vendor.target_options(target, given),
            precision=combinations.same(precision, mxfp6, "precision"),
            kv_precision=combinations.same(kv_precision, mxint8, "kv_precision"),
            precision_overrides=tuple((precision_overrides or {}).items()),
            calibration=calibration,
            calibration_file=None if calibration_file is None else TextFile.read(calibration_file),
            prefill_seq_len=prefill_seq_len,
            ctx_len=ctx_len,
            batch_size=batch_size,
            full_batch_size=full_batch_size if self.continuous_batching else None,
            kv_cache_batch_size=kv_cache_batch_size,
            num_devices=num_devices,
        )
        self.num_speculative_tokens = shape.most_speculative_tokens
        return self._compile(options, onnx_path, compile_dir)

    def generate(
        self,
        tokenizer: Any = None,
        prompts: str | Sequence[str] | None = None,
        device_id: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        *,
        generation_len: int | None = None,
        stream: bool = True,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        speculation: SpeculationConfig | str | None = None,
        draft_model: QEFFAutoModelForCausalLM | str | Path | None = None,
        constraint: Constraint | None = None,
        **options: Any,
    ) -> CloudAI100ExecInfo:
        """Answer every prompt; greedy unless sampling is asked for.

        Successive calls share one engine and what it has computed of equal beginnings. One text
        for each prompt is returned; ``results`` has the others of ``n``, and log-probabilities.

        Args:
            tokenizer: A fast tokenizer of transformers; None uses the container's own.
            prompts: One prompt or several; more than the batch size are answered in turn.
            device_id: Cards to run on, for a container of a card.
            runtime_ai100: Always True: a compiled program is what runs.
            generation_len: Most tokens for each prompt; None goes on until the context is full.
            stream: Write the text to stdout as it is made.
            sampling_params: How tokens are chosen: for all prompts, or a list of values for each.
            speculation: Guess tokens ahead: "prompt_lookup", "lookahead", "draft", "heads", or a
                config; a model with heads takes theirs.
            draft_model: A compiled model, or its container, that guesses; implies "draft".
            constraint: What every answer must fit.
            options: Single sampling settings by name (``temperature=0.7``), and what QEfficient
                takes besides.
        """
        from qeff.apps.answers import deaf
        from qeff.apps.sampling import params_for
        from qeff.apps.streaming import InOrder

        if not runtime_ai100:
            raise OptionNotSupported("runtime_ai100=False is not offered", "compile, then generate")
        opening = self._opening(tokenizer, speculation, draft_model)
        if not prompts:
            raise OptionTypeError("generate needs prompts", 'such as prompts=["My name is"]')
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = params_for(len(texts), sampling_params, options, generation_len)
        answerer = self._kept().answerer(opening)
        ids = [answerer.encode(text) for text in texts]
        answers = answerer.run(ids, params, InOrder(texts) if stream else deaf, constraint)
        self._results = answers.results
        return answerer.exec_info(answers)

    @property
    def results(self) -> tuple[Result, ...]:
        """All that the last ``generate`` gave, for each prompt: log-probabilities, alternatives."""
        return self._results

    def stream(
        self,
        prompt: str,
        tokenizer: Any = None,
        *,
        generation_len: int | None = None,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        speculation: SpeculationConfig | str | None = None,
        draft_model: QEFFAutoModelForCausalLM | str | Path | None = None,
        constraint: Constraint | None = None,
        **options: Any,
    ) -> Iterator[Delta]:
        """Answer one prompt piece by piece; giving the iterator up ends the answer.

        The parameters are those of ``generate``. A piece has the ``text`` that was added, and the
        last one the whole ``result``. Several may be read beside each other.
        """
        from qeff.apps.sampling import params_for
        from qeff.generate import Request

        opening = self._opening(tokenizer, speculation, draft_model)
        (params,) = params_for(1, sampling_params, options, generation_len)
        answerer = self._kept().answerer(opening)
        ids = tuple(answerer.encode(prompt))
        return answerer.engine.stream(Request(ids, params, constraint=constraint))

    async def astream(
        self,
        prompt: str,
        tokenizer: Any = None,
        *,
        generation_len: int | None = None,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        speculation: SpeculationConfig | str | None = None,
        draft_model: QEFFAutoModelForCausalLM | str | Path | None = None,
        constraint: Constraint | None = None,
        **options: Any,
    ) -> AsyncIterator[Delta]:
        """``stream`` for an event loop: the engine runs in a thread until ``close``."""
        from qeff.apps.sampling import params_for
        from qeff.generate import Request

        opening = self._opening(tokenizer, speculation, draft_model)
        (params,) = params_for(1, sampling_params, options, generation_len)
        kept = self._kept()
        engine, answerer = await asyncio.to_thread(kept.in_thread, opening)
        try:
            ids = tuple(answerer.encode(prompt))
            request = Request(ids, params, constraint=constraint)
            async with aclosing(engine.stream(request)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    if piece.result is not None and piece.result.error is not None:
                        raise piece.result.error
                    yield piece
        finally:
            kept.release()

    def close(self) -> None:
        """Give back the memory and the threads of the engine; the next call opens it again."""
        if self._opened is not None:
            self._opened.close()

    def _export_options(self) -> ExportOptions:
        return ExportOptions(
            continuous_batching=self.continuous_batching,
            trust_remote_code=self._location.trust_remote_code,
        )

    def _compile(
        self, options: CompileOptions, onnx_path: str | Path | None, compile_dir: str | Path | None
    ) -> str:
        self.close()
        export_options = self._export_options()
        out = None
        if compile_dir is not None:
            out = Path(compile_dir) / cached_container(self._location, export_options, options).name
        if onnx_path is not None:
            self.onnx_path = Path(onnx_path)
            self.qpc_path = compile_onnx(self.onnx_path, options, out=out)
        else:
            self.qpc_path = build(self._location, export_options, options, out=out)
        return str(self.qpc_path)

    def _opening(self, tokenizer: Any, speculation: Any, draft_model: Any) -> Opening:
        """What the engine is opened from; says what is wrong before it is."""
        from qeff.apps.kept import Opening
        from qeff.apps.speculating import speculating_setup

        if self.qpc_path is None:
            raise OptionTypeError("generate needs a compiled model", "call compile first")
        if self._has_heads and speculation is None and draft_model is None:
            speculation = "heads"
        setup = speculating_setup(speculation, draft_model, self.num_speculative_tokens)
        return Opening(Path(self.qpc_path), tokenizer, setup)

    def _kept(self) -> Kept:
        from qeff.apps.kept import Kept

        if self._opened is None:
            self._opened = Kept()
            weakref.finalize(self, self._opened.close)
        return self._opened
