//! The manifest as a file: where it is, and how it is written.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use weightlift::{Error, ErrorKind, Manifest};

const NAME: &str = "weightlift-manifest.json";

/// Where the manifest of the model at `model` is if nobody says so: in its folder, or beside a
/// file under the file's name, so that two files of one folder do not share one.
pub(super) fn usual_place(model: &Path) -> PathBuf {
    match model.file_name() {
        Some(name) if !model.is_dir() => {
            let mut name = name.to_owned();
            name.push(".");
            name.push(NAME);
            model.with_file_name(name)
        }
        _ => model.join(NAME),
    }
}

/// Reads the manifest. That there is none is an error if it was asked for.
pub(super) fn find(place: &Path, asked_for: bool) -> Result<Option<Manifest>, Error> {
    match Manifest::read(place) {
        Err(error) if error.kind() == ErrorKind::FileNotFound && !asked_for => Ok(None),
        manifest => manifest.map(Some),
    }
}

/// That there is nothing to compare with.
pub(super) fn missing(place: &Path) -> Error {
    Error::new(ErrorKind::FileNotFound, "there is nothing to compare the model with")
        .with("path", place.display())
        .hint("--write writes a manifest of what the model is now, --manifest names another place")
}

/// Writes the manifest whole or not at all: beside its place, and moved there when it is on the
/// disk.
pub(super) fn write(manifest: &Manifest, place: &Path) -> Result<(), Error> {
    let cannot = |error: io::Error| {
        Error::new(ErrorKind::Io, "cannot write the manifest")
            .with("path", place.display())
            .with("reason", &error)
            .because(error)
            .hint("--manifest names another place")
    };
    let folder = match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // As any other file: what the umask leaves of this.
    let file = tempfile::Builder::new()
        .prefix(".weightlift-manifest")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(cannot)?;
    let mut writer = BufWriter::new(file.as_file());
    serde_json::to_writer_pretty(&mut writer, manifest)
        .map_err(io::Error::from)
        .and_then(|()| writer.write_all(b"\n"))
        .and_then(|()| writer.flush())
        .map_err(cannot)?;
    drop(writer);
    file.as_file().sync_all().map_err(cannot)?;
    file.persist(place).map_err(|error| cannot(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)
}
