//! Seeds of ONNX.

use super::{PLAIN, Seeds, add, add_damaged, some};
use crate::write::onnx::{describe, external, file, message, number, start};
use crate::write::{Dtype, Tensor};

pub(crate) fn seeds() -> Seeds {
    let mut seeds = Seeds::new();
    let some_file = file(&some()).to_vec();
    add(&mut seeds, "some", &[PLAIN, [4, 0], [8, 0], [0x40, 0], [0, 1]], &some_file);
    add_damaged(&mut seeds, "some", PLAIN, &some_file);
    let outside = external(&some(), "w.data");
    add(&mut seeds, "external", &[PLAIN, [0, 8], [0, 16], [0, 24]], &outside);
    add_damaged(&mut seeds, "external", [0, 16], &outside);
    for (name, location) in [("external-up", "../w"), ("external-dot", "./d/w")] {
        add(&mut seeds, name, &[[0, 16]], &external(&some()[..1], location));
    }
    let tensor = |kind: u64, field: u64, body: &[u8]| {
        [number(1, 2), number(2, kind), message(8, b"t"), message(field, body)].concat()
    };
    // Two elements of each kind, in the field that is the kind's own.
    let typed: [(&str, u64, u64, &[u8]); 9] = [
        ("floats", 1, 4, b"\0\0\x80\x3f\0\0\0\x40"),
        ("ints", 6, 5, b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("bytes", 2, 5, b"\x01\xff\x01"),
        ("halves", 10, 5, b"\x80\x78\x01"),
        ("packed", 22, 5, b"\x7f"),
        ("longs", 7, 7, b"\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
        ("doubles", 11, 10, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xf0\x3f"),
        ("unsigned", 13, 11, b"\x01\xff\x01"),
        ("complex", 14, 4, b"\0\0\x80\x3f\0\0\0\x40\0\0\x80\x3f\0\0\0\x40"),
    ];
    let model = |graph: &[u8]| [start(), message(7, graph)].concat();
    for (name, kind, field, body) in typed {
        add(&mut seeds, name, &[PLAIN], &model(&message(5, &tensor(kind, field, body))));
    }
    let texts = [number(1, 2), number(2, 8), message(6, b"a"), message(6, b""), message(8, b"s")];
    add(&mut seeds, "strings", &[PLAIN, [8, 0]], &model(&message(5, &texts.concat())));
    let raw = |kind| [tensor(kind, 9, b"\x01"), number(14, 0)].concat();
    add(&mut seeds, "int4", &[PLAIN], &model(&message(5, &raw(22))));
    add(&mut seeds, "unknown", &[PLAIN], &model(&message(5, &raw(99))));
    let body = [describe(&some()[1]), message(9, &[0; 8])].concat();
    let two = [message(5, &body), message(5, &body)].concat();
    add(&mut seeds, "twice", &[PLAIN], &model(&two));
    // A constant in a branch in a branch.
    let constant = [message(2, b"c"), message(4, b"Constant")].concat();
    let value = [message(1, b"value"), message(5, &body), number(20, 4)].concat();
    let mut graph = message(1, &[constant, message(5, &value)].concat());
    for (level, name) in (0..4).zip(["inner", "level2", "level3", "main"]) {
        add(&mut seeds, &format!("nested{level}"), &[PLAIN, [0x20, 0]], &model(&graph));
        let branch = [message(1, b"then_branch"), message(6, &graph), number(20, 5)].concat();
        let node = [message(3, name.as_bytes()), message(4, b"If"), message(5, &branch)].concat();
        graph = [message(1, &node), message(5, &body)].concat();
    }
    let sparse = [message(1, &body), message(2, &tensor(7, 7, b"\x01\x02")), number(3, 9)].concat();
    add(&mut seeds, "sparse", &[PLAIN], &model(&message(15, &sparse)));
    let attribute = message(5, &[message(1, b"value"), message(10, &body)].concat());
    let node = message(7, &[message(4, b"Constant"), attribute].concat());
    let function = [message(1, b"f"), node, message(10, b"d")].concat();
    let functions = [model(b""), message(25, &function), message(25, &function)].concat();
    add(&mut seeds, "functions", &[PLAIN], &functions);
    let entry = message(14, &[message(1, b"k"), message(2, b"v")].concat());
    add(&mut seeds, "metadata", &[PLAIN, [8, 0]], &[model(b""), entry.clone()].concat());
    add(&mut seeds, "metadata-twice", &[PLAIN], &[model(b""), entry.clone(), entry].concat());
    let large = [Tensor::new("l", Dtype::F32, &[1 << 40, 1 << 30])];
    add(&mut seeds, "overflow", &[PLAIN], &model(&message(5, &describe(&large[0]))));
    seeds
}
