//! Where a model's files are.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use weightlift::{Error, ErrorKind, Source};

/// The file that a source is, links resolved; `None` for a source that is made of others.
pub(crate) fn path_of(source: &dyn Source) -> Result<Option<PathBuf>, Error> {
    let open = source.open()?;
    let Some(descriptor) = open.descriptor() else { return Ok(None) };
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(&link).map(Some).map_err(|error| {
        Error::new(ErrorKind::Io, "cannot tell where a file is")
            .with("file", source.name())
            .with("reason", &error)
            .because(error)
    })
}
