//! OpenVINO on weights that weightlift loaded into OpenVINO's own memory.
//!
//! ```text
//! openvino MODEL.xml INPUT OUTPUT
//! ```
//!
//! runs a model with one input of `f32` on the CPU: `INPUT` and `OUTPUT` are files of numbers. The
//! library is looked for where the crate `openvino` looks for it: `libopenvino_c.so` in the folders
//! of `LD_LIBRARY_PATH`, among others.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use engines::{read_floats, write_floats};
use openvino::{Core, DeviceType, ElementType, Model, Shape, Tensor};
use weightlift::index::Format;
use weightlift::{Destination, DeviceChoice, DeviceId, OpenOptions, Request};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [xml, input, output] = &arguments[..] else {
        bail!("usage: openvino MODEL.xml INPUT OUTPUT");
    };
    let mut core = Core::new()?;
    let model = read_model(&mut core, Path::new(xml))?;
    // The model keeps its weights, and so does what is compiled of it. The files are not needed.
    let mut compiled = core.compile_model(&model, DeviceType::CPU)?;
    drop(model);

    let mut request = compiled.create_infer_request()?;
    let shape = compiled.get_input()?.get_shape()?;
    let mut tensor = Tensor::new(ElementType::F32, &shape)?;
    let numbers = read_floats(input)?;
    let wanted = tensor.get_size()?;
    if numbers.len() != wanted {
        bail!("{input} holds {} numbers, the model takes {wanted}", numbers.len());
    }
    tensor.get_data_mut::<f32>()?.copy_from_slice(&numbers);
    request.set_input_tensor(&tensor)?;
    request.infer()?;
    write_floats(output, request.get_output_tensor()?.get_data()?)
}

/// Reads a model in place of `Core::read_model_from_file`, with the weights beside it.
fn read_model(core: &mut Core, xml: &Path) -> Result<Model> {
    let text = std::fs::read(xml).with_context(|| format!("cannot read {}", xml.display()))?;
    // Truncated and missing weights are an error that names the constant, before any is read.
    let model = weightlift::Model::open(xml, &OpenOptions::default())?;
    if model.index().tensors.is_empty() {
        return Ok(core.read_model_from_buffer(&text, None)?);
    }
    let weights = load_whole(&xml.with_extension("bin"))?;
    // OpenVINO counts who uses a tensor's memory: the model does from here on.
    let weights = weights.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(core.read_model_from_buffer(&text, Some(&weights))?)
}

/// A file, as a tensor of bytes in memory of OpenVINO's.
fn load_whole(path: &Path) -> Result<Arc<Mutex<Tensor>>> {
    let mut options = OpenOptions::default();
    options.format = Some(Format::Raw);
    let file = Arc::new(weightlift::Model::open(path, &options)?);
    let length = file.index().bytes();
    let mut tensor = Tensor::new(ElementType::U8, &Shape::new(&[i64::try_from(length)?])?)?;
    let address = tensor.get_raw_data_mut()?.as_mut_ptr() as u64;
    // Behind a lock, because a destination is kept by whatever thread is last to need it.
    let tensor = Arc::new(Mutex::new(tensor));
    let keep_alive = Arc::clone(&tensor);
    let request = Request::new().device(DeviceChoice::Host).destinations(move |_| {
        let keep_alive = Arc::clone(&keep_alive);
        // SAFETY: the tensor has `length` bytes at `address`, zeroed when it was made, and lives as
        // long as `keep_alive`. Nobody looks at it before the load returns, nor writes to it later.
        Ok(unsafe { Destination::new(DeviceId::Host, address, length, keep_alive) })
    });
    weightlift::default_loader().load_model(&file, request)?;
    Ok(tensor)
}
