//! `weightlift plan`: what a load would read and copy.

use serde::Serialize;
use weightlift::{Loader, Model, Plan, Request};

use crate::args;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::Stop;
use crate::text::OneLine;

pub(crate) fn run(options: &args::Plan, stop: &Stop) -> Result<(), Failure> {
    let loader = Loader::new(options.settings.options(None)?);
    let model = Model::open(&options.model.path, &options.model.open_options()?)?;
    let plan = loader.plan(&model, &Request::new().tensors(&options.settings.tensors))?;
    let mut output = Output::stdout(stop)?;
    if options.json {
        output.json(&PlanJson::new(&model, &plan))?;
        output.line("")?;
    } else {
        for (number, source) in model.index().sources.iter().enumerate() {
            output.line(format_args!("source {number}: {}", OneLine(&source.name)))?;
        }
        output.text(&plan)?;
    }
    output.finish()
}

/// The library's [`Plan`], which is no serde type: a plan is nobody's format but this one.
#[derive(Serialize)]
struct PlanJson<'a> {
    bytes: u64,
    block_size: u64,
    piece_size: u64,
    /// Names of the files, in the order of their numbers.
    sources: Vec<&'a str>,
    storages: Vec<StorageJson<'a>>,
    blocks: Vec<BlockJson>,
}

#[derive(Serialize)]
struct StorageJson<'a> {
    length: u64,
    /// Names of the model's tensors that lie in it, those not asked for included.
    tensors: Vec<&'a str>,
}

#[derive(Serialize)]
struct BlockJson {
    bytes: u64,
    pieces: Vec<PieceJson>,
    copies: Vec<CopyJson>,
}

#[derive(Serialize)]
struct PieceJson {
    source: u32,
    offset: u64,
    length: u64,
    block_offset: u64,
}

#[derive(Serialize)]
struct CopyJson {
    block_offset: u64,
    length: u64,
    /// A position in `storages`.
    storage: usize,
    storage_offset: u64,
}

impl<'a> PlanJson<'a> {
    fn new(model: &'a Model, plan: &Plan) -> Self {
        let index = model.index();
        let mut tensors: Vec<Vec<&str>> = vec![Vec::new(); index.storages.len()];
        for tensor in &index.tensors {
            tensors[tensor.storage.0 as usize].push(&tensor.name);
        }
        let storages = plan.storages.iter().map(|storage| StorageJson {
            length: storage.length,
            tensors: std::mem::take(&mut tensors[storage.id.0 as usize]),
        });
        Self {
            bytes: plan.bytes(),
            block_size: plan.block_size,
            piece_size: plan.piece_size,
            sources: index.sources.iter().map(|source| &*source.name).collect(),
            storages: storages.collect(),
            blocks: (0..plan.blocks.len()).map(|number| BlockJson::new(plan, number)).collect(),
        }
    }
}

impl BlockJson {
    fn new(plan: &Plan, number: usize) -> Self {
        let pieces = plan.pieces_of(number).iter().map(|piece| PieceJson {
            source: piece.source.0,
            offset: piece.offset,
            length: piece.length,
            block_offset: piece.block_offset,
        });
        let copies = plan.copies_of(number).iter().map(|copy| CopyJson {
            block_offset: copy.block_offset,
            length: copy.length,
            storage: copy.storage,
            storage_offset: copy.storage_offset,
        });
        Self {
            bytes: plan.blocks[number].bytes,
            pieces: pieces.collect(),
            copies: copies.collect(),
        }
    }
}
