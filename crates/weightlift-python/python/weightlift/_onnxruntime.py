"""How a session comes to its weights. Imports onnxruntime: see ``weightlift.onnxruntime``.

The session is given the model's own bytes, and each file that these name as memory (``_native.Image``).
Beside that it is given big weights as tensors that are loaded already, with ``add_initializer``: on the
device, or in host memory. ONNX Runtime takes such a tensor for the initializer of that name when all
optimizers are done, and it compares neither type nor shape; optimizers know only the files' bytes. So:

- what optimizers fold, fuse or rename, they do with the files' bytes, and it is right;
- a weight that an optimizer changes *under its name*, as that which moves transpositions does, would be
  replaced by its unchanged self. Only weights of operators for which none does that are handed over
  (``_onnx.Graph.changers``), and if the bytes of one that is in use were looked at in its file all the same,
  the session is made again without it;
- what the session does not use it lets go of, and the tensor's deleter says so.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, NamedTuple, Sequence

import onnxruntime
from onnxruntime.capi import _pybind_state

from . import _native, _onnx
from ._model import Model, Tensor, TensorInfo, literal
from .errors import Changed, FormatError, InvalidOption, NoDevice, NoDriver

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
# Smaller weights come from the host, as ONNX Runtime does it: they are not worth a call each. Whether one was
# looked at is told by whole pages.
SMALLEST = 64 << 10
# Each is up to three parts of the address space, of which Linux allows a process 65530.
MOST_WEIGHTS = 8192
# Of shapes and their like ONNX Runtime looks at the values before it has been given any file.
SHAPE = 1 << 10
# Kernels on a GPU ask for it, and ONNX Runtime itself lays its initializers so; on the host a cache line is
# more than any kernel of ONNX Runtime asks for.
ALIGNMENT = {"host": 64, "cuda": 256}
# What DLPack and every version of ONNX Runtime agree upon: bytes of an element, and their numbers in ONNX.
BYTES = {"F16": 2, "F32": 4, "F64": 8, "BF16": 2, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "U8": 1, "U16": 2, "U32": 4,
         "U64": 8}  # fmt: skip
ELEMENT = {"F32": 1, "U8": 2, "I8": 3, "U16": 4, "I16": 5, "I32": 6, "I64": 7, "F16": 10, "F64": 11, "U32": 12,
           "U64": 13, "BF16": 16}  # fmt: skip
# A message of Protocol Buffers has to be shorter.
MOST_BYTES = (2 << 30) - 1
LOAD_OPTIONS = {"route", "reading_threads", "staging_budget", "progress", "loader"}
# The smallest model: a version and an empty graph.
_EMPTY = b"\x08\x08\x3a\x00\x42\x02\x10\x0d"


class Session(onnxruntime.InferenceSession):
    """A session on weights that weightlift loaded; see :func:`weightlift.onnxruntime.session`."""

    weightlift_report: dict[str, Any]
    _weightlift_again: Callable[[Any, Any], Session]

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Makes the session again, for other providers. The weights are loaded again, when those that there are
        have gone; as with any session, there is none left if that fails."""
        again = self._weightlift_again
        self.__dict__.clear()
        self._sess, self._weightlift_again = None, again
        self.__dict__.update(again(providers, provider_options).__dict__)


def make(model: Model, options: Any, providers: Any, provider_options: Any, load_options: dict[str, Any]) -> Session:
    """A session; the providers that it has decide where the weights go."""
    unknown = sorted(set(load_options) - LOAD_OPTIONS)
    if unknown:
        raise TypeError(f"session() has no option {unknown[0]!r}; options of a load are {', '.join(sorted(LOAD_OPTIONS))}")
    if model.format != "onnx":
        raise FormatError(f"ONNX Runtime runs ONNX models, and this is one of format {model.format} (file: {model.path})")
    if options is not None and not callable(options):
        # Now: the caller may change them before the providers are set anew.
        options = _copied(options)
    chosen = providers
    if providers is None:
        available = onnxruntime.get_available_providers()
        chosen = [name for name in (CUDA, CPU) if name in available]

    def again(providers: Any, provider_options: Any) -> Session:
        return make(model, options, providers, provider_options, load_options)

    try:
        made = _Making(model, options, chosen, provider_options, load_options).session()
    except (NoDriver, NoDevice):
        if providers is not None or CUDA not in chosen:
            raise
        made = _Making(model, options, [CPU], None, load_options).session()
    made._weightlift_again = again
    return made


class _Weight(NamedTuple):
    info: TensorInfo
    tensor: Tensor


class _Making:
    """What goes into a session, until it is there."""

    def __init__(self, model: Model, options: Any, providers: Any, provider_options: Any, load_options: dict[str, Any]):
        self.started = time.perf_counter()
        self.model = model
        self.options = options
        self.providers = providers
        self.provider_options = provider_options
        self.device = _device(providers, provider_options)
        self.only_cpu = [_name(each) for each in providers or ()] == [CPU]
        self.load_options = load_options
        self.host: dict[str, str] = {}
        # Bytes of what was loaded, by number: weights may share theirs.
        self.storages: dict[int, int] = {}
        own = model._native.files()[0]
        self.images = {own: _native.Image(model._native, own)}
        data = self.images[own].read(0, self.images[own].nbytes)
        self.graph = _onnx.Graph(data)
        self._check()
        # By name, those that lie in files, and those in the model that could as well: its own file is one.
        self.external = {name: model[name] for name, found in self.graph.initializers.items()
                         if found.location is not None and model[name].nbytes >= SHAPE}  # fmt: skip
        outer = {name for name, found in self.graph.initializers.items() if self._is_as_in_memory(name, found)}
        self.external |= {name: model[name] for name in outer}
        # What ONNX Runtime is given, by what it looks for.
        self.files = {_key(found.location): self._image(found.location) for found in self.graph.initializers.values()
                      if found.location is not None}  # fmt: skip
        if outer:
            data = _onnx.with_outer_data(data, outer, own)
            self.files[own] = self.images[own]
        self.data = self._with_inner_data(data)

    def session(self) -> Session:
        """Loads, and makes the session, twice if that is needed."""
        wanted = self._wanted()
        weights = self._load(wanted)
        loaded = time.perf_counter()
        self._keep(name for name in self.external if name not in weights and self.graph.is_used(name))
        self._watch(weights)
        sizes = {name: weight.info.nbytes for name, weight in weights.items()}
        while True:
            handed = {name: weight.tensor.hand_over() for name, weight in weights.items()}
            session = self._create(weights, handed)
            changed = self._changed([name for name in handed if handed[name].held])
            if not changed:
                break
            # Without those, and never with both at the same time.
            del session, handed
            for name in changed:
                del weights[name]
                self.host[name] = "it was read while the session was made, so it may have been changed under its name"
            self._keep(changed)
        # From here on a weight is the session's alone.
        weights.clear()
        in_place = {name: sizes[name] for name, tensor in handed.items() if tensor.held}
        used = {self.model[name].storage for name in in_place}
        dropped = [name for name in handed if name not in in_place]
        if not self.only_cpu:
            # Other providers may have taken them from the files' memory, and use them there.
            self._keep(dropped)
        for name in dropped:
            self.host[name] = "the session did not take it: it has its own copy, or one in another form, or needs none"
        for image in self.images.values():
            image.check_unchanged()
        # ONNX Runtime does not keep the memory of files.
        weakref.finalize(session._sess, _end, list(self.images.values())).atexit = False
        now = time.perf_counter()
        session.weightlift_report = {
            "onnxruntime": onnxruntime.__version__,
            "providers": list(session.get_providers()),
            "device": self.device,
            "in_place": in_place,
            "host": {name: self.host[name] for name in self.graph.initializers if name in self.host},
            "bytes": sum(nbytes for storage, nbytes in self.storages.items() if storage in used),
            "given_back": sum(nbytes for storage, nbytes in self.storages.items() if storage not in used),
            "seconds": {"load": loaded - self.started, "session": now - loaded, "total": now - self.started},
            "load": self.load_report,
        }
        return session

    def _image(self, location: str) -> _native.Image:
        name = location
        while name.startswith("./"):
            name = name[2:]
        if name not in self.images:
            self.images[name] = _native.Image(self.model._native, name)
        return self.images[name]

    def _with_inner_data(self, data: bytes) -> bytes:
        """ONNX Runtime reads the files itself for tensors in subgraphs, attributes and functions, whatever it
        was given: their data move into the model. So do shapes."""
        data, count = _onnx.with_inner_data(data, lambda location, *place: self._image(location).read(*place), SHAPE)
        if count and len(data) > MOST_BYTES:
            raise FormatError(
                f"the tensors in subgraphs and attributes that lie in files have to be in the model for ONNX Runtime, "
                f"and then it is too long (file: {self.model.path}, bytes: {len(data)}, limit: {MOST_BYTES})"
            )
        return data

    def _is_as_in_memory(self, name: str, found: _onnx.Initializer) -> bool:
        info = self.model[name]
        return found.raw == (info.offset, info.offset + info.nbytes) and info.nbytes >= SMALLEST

    def _check(self) -> None:
        """ONNX Runtime compares nothing: type and shape of what we hand over must be those of the model."""
        for name, found in self.graph.initializers.items():
            info = self.model._infos().get(name)
            if info is None or (info.dtype, info.shape) != (found.dtype, found.shape):
                raise Changed(f"the model is not the one that was opened (file: {self.model.path}, tensor: {name})")

    def _wanted(self) -> list[str]:
        wanted = [name for name in self.graph.initializers if self._is_wanted(name)]
        wanted.sort(key=lambda name: self.model[name].nbytes, reverse=True)
        for name in wanted[MOST_WEIGHTS:]:
            self.host[name] = f"{MOST_WEIGHTS} others are larger"
        return wanted[:MOST_WEIGHTS]

    def _is_wanted(self, name: str) -> bool:
        """Whether a weight is to be handed over; why not, otherwise, is noted."""
        info = self.model[name]
        changers = sorted(self.graph.changers(name))
        if not self.graph.is_used(name):
            why = "nothing uses it"
        elif info.nbytes < SMALLEST:
            why = f"it is smaller than {SMALLEST >> 10} KiB"
        elif name not in self.external:
            why = "the model has it in a form that is not that of memory"
        elif info.dtype not in BYTES:
            why = f"{info.dtype} is not handed over by DLPack"
        elif name in self.graph.inner:
            why = "a subgraph has another initializer of its name"
        elif changers:
            why = f"an optimizer may change weights of {', '.join(changers)} under their names"
        else:
            return True
        self.host[name] = why
        return False

    def _load(self, names: Sequence[str]) -> dict[str, _Weight]:
        self.load_report = None
        if not names:
            return {}
        patterns = [literal(name) for name in names]
        loaded = self.model._run(self.device, tensors=patterns, apart=True, **self.load_options)
        self.load_report = self.model.report
        weights = {}
        alignment = ALIGNMENT[self.device.partition(":")[0]]
        for tensor in loaded:
            self.storages[self.model[tensor.name].storage] = self.model[tensor.name].storage_nbytes
            if tensor.address % alignment:
                self.host[tensor.name] = f"it shares bytes with others and begins at no multiple of {alignment}"
            else:
                weights[tensor.name] = _Weight(self.model[tensor.name], tensor)
        return weights

    def _keep(self, names: Any) -> None:
        """What the session may use out of a file's memory for as long as it lives becomes ours."""
        for file, (_, places) in self._places(names).items():
            self.images[file].keep(places)

    def _watch(self, names: Any) -> None:
        for file, (_, places) in self._places(names).items():
            self.images[file].watch(places)

    def _changed(self, names: list[str]) -> list[str]:
        """Those whose bytes were looked at in their file."""
        changed = []
        # Those at odd offsets ONNX Runtime copies as soon as it is given their file, whatever then becomes of them.
        even = [name for name in names if self.external[name].offset % BYTES[self.external[name].dtype] == 0]
        for file, (here, places) in self._places(even).items():
            looked = self.images[file].looked_at(places) or ()
            changed += [name for name, was in zip(here, looked) if was]
        return changed

    def _places(self, names: Any) -> dict[str, tuple[list[str], list[tuple[int, int]]]]:
        """Names, offsets and lengths by file, of those that lie in files."""
        places: dict[str, tuple[list[str], list[tuple[int, int]]]] = {}
        for name in names:
            if name in self.external:
                info = self.external[name]
                here = places.setdefault(info.file, ([], []))
                here[0].append(name)
                here[1].append((info.offset, info.nbytes))
        return places

    def _fresh_options(self) -> onnxruntime.SessionOptions:
        if self.options is None:
            return onnxruntime.SessionOptions()
        return self.options() if callable(self.options) else _copied(self.options)

    def _create(self, weights: dict[str, _Weight], handed: dict[str, _native.Handed]) -> Session:
        options = self._fresh_options()
        if self.files:
            options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
            images = list(self.files.values())
            sizes = [image.nbytes for image in images]
            options.add_external_initializers_from_files_in_memory(list(self.files), images, sizes)
        # Options hold the addresses of these values, not the values.
        values = {name: _value(tensor, weights[name]) for name, tensor in handed.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
        session = Session(self.data, options, providers=self.providers, provider_options=self.provider_options)
        # Those that the session did not take go here. So do the options that name them: nobody may make another
        # session of these.
        values.clear()
        session._sess_options = session._sess_options_initial = self._fresh_options()
        session._model_bytes = None
        return session


def _value(tensor: _native.Handed, weight: _Weight) -> onnxruntime.OrtValue:
    value = onnxruntime.OrtValue.from_dlpack(tensor)
    info = weight.info
    expected = (ELEMENT[info.dtype], list(info.shape), weight.tensor.address)
    found = (value.element_type(), list(value.shape()), value.data_ptr())
    if found != expected:
        raise RuntimeError(f"ONNX Runtime took {info.name} for something else: {found} instead of {expected}")
    return value


def _end(images: list[_native.Image]) -> None:
    images.clear()


def _key(location: str) -> str:
    """How ONNX Runtime looks for a file that it was given."""
    return location.removeprefix("./")


def _name(provider: Any) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _device(providers: Any, provider_options: Any) -> str:
    if CUDA not in onnxruntime.get_available_providers():
        return "host"
    for number, provider in enumerate(providers or ()):
        if _name(provider) != CUDA:
            continue
        settings = provider[1] if not isinstance(provider, str) else {}
        if provider_options is not None and number < len(provider_options):
            settings = provider_options[number]
        return f"cuda:{int(settings.get('device_id', 0))}"
    return "host"


def _copied(options: Any) -> onnxruntime.SessionOptions:
    """Options like these, which ONNX Runtime copies for each session."""
    if options.has_providers():
        raise InvalidOption("providers are given to session() itself, not with its options", context={"option": "sess_options"})
    # A session that is not initialized copies them, and would begin a profile.
    profiling, options.enable_profiling = options.enable_profiling, False
    try:
        copy = _pybind_state.InferenceSession(options, _EMPTY, False, False).session_options
    finally:
        options.enable_profiling = profiling
    copy.enable_profiling = profiling
    return copy
