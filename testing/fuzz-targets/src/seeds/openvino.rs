//! Seeds of the OpenVINO IR.

use super::{PLAIN, Seeds, add, add_damaged, some};
use crate::write::openvino::file;

pub(crate) fn seeds() -> Seeds {
    let mut seeds = Seeds::new();
    let (xml, _) = file(&some());
    let settings = [PLAIN, [0, 1], [0, 2], [0, 3], [4, 3], [8, 3], [0x20, 3], [0x40, 3]];
    add(&mut seeds, "some", &settings, xml.as_bytes());
    add_damaged(&mut seeds, "some", [0, 3], xml.as_bytes());
    let constant = |name: &str, kind: &str, shape: &str, size: u64| {
        format!(
            "<layer id=\"0\" name=\"{name}\" type=\"Const\" version=\"opset1\"><data \
             element_type='{kind}' shape='{shape}' offset='0' size='{size}'/></layer>"
        )
    };
    let net = |layers: &str| {
        format!("<net name=\"m\" version=\"11\"><layers>{layers}</layers><edges/></net>")
    };
    let kinds = [
        ("boolean", 3),
        ("bf16", 6),
        ("u1", 1),
        ("u2", 1),
        ("u3", 3),
        ("u4", 2),
        ("nf4", 2),
        ("u6", 3),
        ("f8e4m3", 3),
        ("f4e2m1", 2),
        ("string", 9),
        ("dynamic", 4),
    ];
    for (kind, size) in kinds {
        add(&mut seeds, kind, &[[0, 3]], net(&constant("c", kind, "3", size)).as_bytes());
    }
    let one = constant("a", "u8", "4", 4);
    let body = |name: &str, inner: &str| {
        format!(
            "<layer id=\"1\" name=\"{name}\" type=\"If\" version=\"opset8\"><then_body><layers>\
             {inner}</layers></then_body></layer>"
        )
    };
    let twice = net(&format!("{one}{one}{}", body("i", &body("j", &one))));
    add(&mut seeds, "nested", &[[0, 3], [0x20, 3]], twice.as_bytes());
    for (name, text) in [
        ("empty", net("")),
        ("version", net("").replace("11", "9")),
        ("entities", net(&constant("&lt;&#x41;&amp;&quot;&#1114111;", "u8", "1", 1))),
        ("escape", net(&constant("&unknown;", "u8", "1", 1))),
        ("comment", net("<!-- <layer> --><![CDATA[ <x> ]]><?p q?>")),
        ("doctype", format!("<!DOCTYPE net [<!ENTITY a \"b\">]>{}", net(""))),
        ("mark", format!("\u{feff}<?xml version='1.0' encoding='UTF-8'?>{}", net(&one))),
        (
            "runtime",
            net(&one).replace("</net>", "<rt_info><a><b value=\"c\"/></a></rt_info></net>"),
        ),
        ("small", net(&constant("a", "f32", "2,2", 8))),
        ("overflow", net(&constant("a", "f64", "4294967296,4294967296", 8))),
        ("negative", net(&constant("a", "u8", "-1", 1))),
        ("unclosed", net(&one).replace("</layers>", "")),
        ("attribute-twice", net(&one.replace("id=\"0\"", "id=\"0\" id=\"1\""))),
        ("html", "<!DOCTYPE html><html></html>".into()),
    ] {
        add(&mut seeds, name, &[[0, 3]], text.as_bytes());
    }
    seeds
}
