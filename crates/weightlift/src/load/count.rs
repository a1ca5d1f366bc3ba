//! What a run did, in its report: every byte once.

use super::Ran;
use crate::plan::Plan;
use crate::read::{Access, Kind};
use crate::report::{Bytes, Fallback, Report, SourceReport};
use crate::source::Model;

/// Counts every byte once.
pub(super) fn count(report: &mut Report, model: &Model, ran: &Ran) {
    let mut decoded = 0;
    let mut planned = vec![0; model.sources().len()];
    for piece in &ran.plan.pieces {
        planned[piece.source.0 as usize] += piece.length;
    }
    for source in sources_of(&ran.plan) {
        let bytes = Bytes {
            planned: planned[source],
            read: ran.measures.read[source],
            delivered: ran.delivered[source],
        };
        report.bytes.planned += bytes.planned;
        report.bytes.read += bytes.read;
        report.bytes.delivered += bytes.delivered;
        let name = model.sources()[source].name().to_owned();
        report.sources.push(SourceReport { name, bytes });
        if model.index().sources[source].decoded.is_some() {
            decoded += bytes.read;
        }
    }
    report.routes.insert(ran.route.to_string(), report.bytes.delivered);
    // What was decoded was read when the model was opened.
    report.count_direct(ran.measures.direct);
    // All others are counted where they are read.
    let others: u64 = report.reads.values().sum();
    report.reads.insert(Kind::Buffered.name().to_owned(), report.bytes.read - decoded - others);
    if decoded > 0 {
        report.reads.insert("decoded".to_owned(), decoded);
    }
    report.reading_threads = ran.measures.readers;
    let seconds = &mut report.seconds;
    seconds.read = ran.measures.reading.as_secs_f64();
    seconds.verify = ran.measures.verifying.as_secs_f64();
    seconds.waiting_for_disk = ran.measures.waiting_for_disk.as_secs_f64();
    seconds.waiting_for_bus = ran.measures.waiting_for_bus.as_secs_f64();
}

/// What was learnt of how sources can be read.
pub(super) fn note(access: &Access, read: impl Iterator<Item = usize>, report: &mut Report) {
    let wished = access.wished();
    if wished == Kind::Mapped {
        report.decide("reads", wished.name(), "asked for");
        report.reads.insert(wished.name().to_owned(), access.mapped_bytes());
    }
    let rules = access.rules(read);
    if !rules.is_empty() {
        report.decide("reads", Kind::Buffered.name(), rules.join("; "));
    }
    for (source, why, bytes) in access.refusals() {
        report.fallbacks.push(Fallback {
            from: wished.name().to_owned(),
            to: Kind::Buffered.name().to_owned(),
            reason: format!("{}: {why}", access.sources()[source].name()),
            bytes,
        });
    }
    if let Some((engine, why)) = access.engine() {
        report.decide("direct_reads", engine, why);
    }
}

/// The sources that a plan reads, each once, in order.
pub(super) fn sources_of(plan: &Plan) -> Vec<usize> {
    let mut sources: Vec<usize> = plan.pieces.iter().map(|piece| piece.source.0 as usize).collect();
    sources.dedup();
    sources
}
