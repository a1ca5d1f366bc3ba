//! ONNX Runtime on external weights that weightlift loaded.
//!
//! ```text
//! ORT_DYLIB_PATH=.../libonnxruntime.so onnxruntime MODEL.onnx INPUT OUTPUT
//! ```
//!
//! runs a model with one input of `f32` on the CPU: `INPUT` and `OUTPUT` are files of numbers. The
//! model's external files are handed over as weightlift loaded them; from ONNX Runtime 1.31 on they
//! are used in place, before that copied. Subgraphs' weights it reads from the files itself.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use engines::{read_floats, write_floats};
use ort::session::Session;
use ort::value::TensorRef;
use weightlift::index::Format;
use weightlift::{DeviceChoice, OpenOptions, Request, Tensor};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, input, output] = &arguments[..] else {
        bail!("usage: onnxruntime MODEL.onnx INPUT OUTPUT");
    };
    let mut weighted = Weighted::open(Path::new(model))?;
    let numbers = read_floats(input)?;
    let shape = weighted.session.inputs().first().and_then(|input| input.dtype().tensor_shape());
    let shape = shape.context("the model has no input that is a tensor")?.to_vec();
    let tensor = TensorRef::from_array_view((shape, &numbers[..]))?;
    let outputs = weighted.session.run(ort::inputs![tensor])?;
    let (_, numbers) = outputs[0].try_extract_tensor::<f32>()?;
    write_floats(output, numbers)
}

/// A session and the memory that it uses. Fields are dropped in the order in which they stand: the
/// session first.
struct Weighted {
    session: Session,
    _files: Vec<Tensor>,
}

impl Weighted {
    /// Makes a session of a model, in place of `commit_from_file`.
    fn open(path: &Path) -> Result<Self> {
        let folder = path.parent().context("the model is a file")?;
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut files = Vec::new();
        let mut builder = Session::builder()?
            .with_config_entry("session.use_external_initializer_file_buffers_directly", "1")
            .map_err(ort::Error::<()>::from)?;
        for name in external_files(path)? {
            let tensor = load_whole(&folder.join(&*name))?;
            let bytes = tensor.as_bytes().context("it is in host memory")?;
            // SAFETY: the tensor's memory stays where it is when the tensor is moved, and is there
            // until `_files` is dropped, which comes behind the session's drop, or behind the
            // builder's where no session is made. Nobody writes to it.
            let bytes: &'static [u8] =
                unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            files.push(tensor);
            builder = builder
                .with_external_initializer_file_in_memory(&*name, Cow::Borrowed(bytes))
                .map_err(ort::Error::<()>::from)?;
        }
        let session = builder.commit_from_memory(&bytes)?;
        Ok(Self { session, _files: files })
    }
}

/// The files that a model's weights lie in beside the model itself, by the names it has for them.
/// They are checked: all there, long enough, and in the model's folder.
fn external_files(path: &Path) -> Result<Vec<Box<str>>> {
    let model = weightlift::Model::open(path, &OpenOptions::default())?;
    let own = path.file_name().and_then(|name| name.to_str());
    let sources = model.index().sources.iter();
    let others = sources.filter(|s| s.decoded.is_none() && Some(&*s.name) != own);
    let mut names: Vec<_> = others.map(|source| source.name.clone()).collect();
    names.dedup();
    Ok(names)
}

/// A file as one tensor of bytes in host memory.
fn load_whole(path: &Path) -> Result<Tensor> {
    let mut options = OpenOptions::default();
    options.format = Some(Format::Raw);
    let file = Arc::new(weightlift::Model::open(path, &options)?);
    let loaded = weightlift::default_loader()
        .load_model(&file, Request::new().device(DeviceChoice::Host))?;
    loaded.tensors.into_iter().next().ok_or_else(|| anyhow!("{} has no tensor", path.display()))
}
