//! The formats that are read.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind};

/// A format of model files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Safetensors: [`safetensors`](crate::safetensors).
    Safetensors,
    /// GGUF: [`gguf`](crate::gguf).
    Gguf,
    /// ONNX, with or without external data: [`onnx`](crate::onnx).
    Onnx,
    /// An OpenVINO IR: a description in XML and its weights: [`openvino`](crate::openvino).
    OpenVino,
    /// A PyTorch checkpoint in a ZIP archive: [`pytorch`](crate::pytorch).
    PyTorch,
    /// Any file, as one tensor of bytes: [`raw`](crate::raw).
    Raw,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Safetensors, Self::Gguf, Self::Onnx, Self::OpenVino, Self::PyTorch, Self::Raw];

    /// Its name, as options have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Onnx => "onnx",
            Self::OpenVino => "openvino",
            Self::PyTorch => "pytorch",
            Self::Raw => "raw",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    /// The format of this [name](Self::name).
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::UnknownFormat, "there is no format of this name")
                .with("format", text)
                .with("known", names)
        })
    }
}
