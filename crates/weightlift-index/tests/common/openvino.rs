//! Networks in XML, written by hand.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fmt::Write as _;

use weightlift_index::openvino::parse;
use weightlift_index::{Error, Index, Limits};

/// A constant: the attributes of its layer and of its data, as the file writes them.
#[derive(Clone, Copy)]
pub struct Const<'a> {
    pub name: &'a str,
    pub element_type: &'a str,
    pub shape: &'a str,
    pub offset: &'a str,
    pub size: &'a str,
}

/// Four floats at the start of the weights, sixteen bytes.
pub const GOOD: Const<'static> =
    Const { name: "w", element_type: "f32", shape: "4", offset: "0", size: "16" };

impl Const<'_> {
    /// The layer of this constant, as OpenVINO writes it.
    pub fn layer(&self) -> String {
        layer(self.name, "Const", &self.data())
    }

    /// Its `<data>`.
    pub fn data(&self) -> String {
        let Self { element_type, shape, offset, size, .. } = self;
        format!(
            "<data element_type=\"{element_type}\" shape=\"{shape}\" offset=\"{offset}\" \
             size=\"{size}\" />"
        )
    }

    /// A network of this constant alone.
    pub fn net(&self) -> String {
        net(&self.layer())
    }
}

/// A layer of this name and type with this inside.
pub fn layer(name: &str, kind: &str, inside: &str) -> String {
    format!(
        "<layer id=\"0\" name=\"{name}\" type=\"{kind}\" version=\"opset1\">\n{inside}\
         <output><port id=\"0\" precision=\"FP32\"><dim>4</dim></port></output></layer>\n"
    )
}

/// A body, or another element, with layers.
pub fn body(name: &str, layers: &str) -> String {
    format!("<{name}><layers>\n{layers}</layers><edges/><rt_info/></{name}>")
}

/// A network of these layers.
pub fn net(layers: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<net name=\"n\" version=\"11\">\n<layers>\n{layers}</layers>\n\
         <edges>\n<edge from-layer=\"0\" from-port=\"0\" to-layer=\"1\" to-port=\"0\" />\n</edges>\n\
         <rt_info><Runtime_version value=\"2026.4.1\"/></rt_info>\n</net>\n"
    )
}

/// A network of so many constants of two bytes, one after the other, with names of real length.
pub fn many(count: usize) -> String {
    let mut layers = String::new();
    for i in 0..count {
        let (layer, expert) = (i / 256, i % 256);
        write!(
            layers,
            "\t\t<layer id=\"{i}\" name=\"model.layers.{layer}.mlp.experts.{expert}.weight\" \
             type=\"Const\" version=\"opset1\">\n\t\t\t<data element_type=\"f16\" shape=\"1\" \
             offset=\"{}\" size=\"2\" />\n\t\t\t<output>\n\t\t\t\t<port id=\"0\" \
             precision=\"FP16\">\n\t\t\t\t\t<dim>1</dim>\n\t\t\t\t</port>\n\t\t\t</output>\n\
             \t\t</layer>\n",
            2 * i
        )
        .expect("writing to a string cannot fail");
    }
    net(&layers)
}

/// The index of a network whose weights have this length.
pub fn read(xml: impl AsRef<[u8]>, weights: u64) -> Result<Index, Error> {
    let network = parse(&mut xml.as_ref(), &Limits::default())?;
    let index = network.into_index(Some(("w.bin", weights)))?;
    index.validate()?;
    Ok(index)
}

/// Names of the tensors of a network.
pub fn names(xml: &str) -> Vec<String> {
    let index = read(xml, 1 << 40).unwrap_or_else(|error| panic!("{error}"));
    index.tensors.iter().map(|tensor| tensor.name.to_string()).collect()
}
