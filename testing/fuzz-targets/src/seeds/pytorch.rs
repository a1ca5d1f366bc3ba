//! Seeds of PyTorch checkpoints.

use super::{PLAIN, Seeds, add, add_damaged, some};
use crate::write::pytorch::{file, pickle};

/// A pickle alone, for the target to put into an archive.
const PICKLE: [u8; 2] = [0, 1];

pub(crate) fn seeds() -> Seeds {
    let mut seeds = Seeds::new();
    let some_file = file(&some()).to_vec();
    add(&mut seeds, "some", &[PLAIN, [1, 0], [4, 0], [0x20, 0], [0x40, 0]], &some_file);
    add_damaged(&mut seeds, "some", PLAIN, &some_file);
    add(&mut seeds, "none", &[PLAIN], &file(&[]).to_vec());
    let three = [some().swap_remove(0), some().swap_remove(3)];
    let plain = pickle(&three);
    add(&mut seeds, "pickle", &[PICKLE], &plain);
    add_damaged(&mut seeds, "pickle", PICKLE, &plain);
    // A tensor by its storage, offset, shape and strides, each as a pickle has it.
    let tensor = |offset: &[u8], shape: &[u8], strides: &[u8]| {
        let mut bytes = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage\
            ctorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x10tQ"
            .to_vec();
        for part in [offset, shape, strides, b"\x89ccollections\nOrderedDict\n)RtR"] {
            bytes.extend_from_slice(part);
        }
        bytes
    };
    let alone = |name: &str, body: &[u8]| {
        let name = [b"}X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat();
        [&body[..2], &name, &body[2..], b"s."].concat()
    };
    let whole = tensor(b"K\0", b"K\x04K\x04\x86", b"K\x04K\x01\x86");
    for (name, body) in [
        ("whole", whole.clone()),
        ("transposed", tensor(b"K\0", b"K\x04K\x04\x86", b"K\x01K\x04\x86")),
        ("row", tensor(b"K\x08", b"K\x04\x85", b"K\x01\x85")),
        ("column", tensor(b"K\x01", b"K\x04\x85", b"K\x04\x85")),
        ("expanded", tensor(b"K\0", b"K\x64K\x10\x86", b"K\0K\x01\x86")),
        ("scalar", tensor(b"K\x0f", b")", b")")),
        ("outside", tensor(b"K\x01", b"K\x10\x85", b"K\x01\x85")),
        ("backwards", tensor(b"K\x0f", b"K\x10\x85", b"J\xff\xff\xff\xff\x85")),
        ("huge", tensor(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"K\x01\x85", b"K\x01\x85")),
    ] {
        add(&mut seeds, name, &[PICKLE], &alone("w", &body));
    }
    let parameter = [
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n(",
        &whole[2..],
        b"\x88ccollections\nOrderedDict\n)RtR",
    ]
    .concat();
    add(&mut seeds, "parameter", &[PICKLE], &alone("w", &parameter));
    for (name, bytes) in [
        ("system", &b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR."[..]),
        ("stack-global", b"\x80\x04\x95\x14\0\0\0\0\0\0\0\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."),
        ("reduce-number", b"\x80\x02K\x01)R."),
        ("protocol-0", b"(dp0\nS'a'\np1\nI1\ns."),
        ("protocol-5", b"\x80\x05\x95\x03\0\0\0\0\0\0\0}\x94."),
        ("numbers", b"\x80\x02}(X\x01\0\0\0aG?\xf0\0\0\0\0\0\0X\x01\0\0\0bM\xff\xffX\x01\0\0\0c\x88X\x01\0\0\0dNX\x01\0\0\0e]K\x01au."),
        ("nested", b"\x80\x02}X\x01\0\0\0a}X\x01\0\0\0b]}X\x01\0\0\0cK\x01sass."),
        ("memo", b"\x80\x02}q\0X\x01\0\0\0aq\x01h\0s."),
        ("itself", b"\x80\x02]q\0h\0a."),
        ("no-stop", b"\x80\x02}"),
        ("empty-stack", b"\x80\x02."),
        ("only-marks", b"\x80\x02((((((t."),
        ("build", b"\x80\x02ccollections\nOrderedDict\n)R}X\x09\0\0\0_metadata}sb."),
    ] {
        add(&mut seeds, name, &[PICKLE, [0x20, 1]], bytes);
    }
    // Lists that hold the one before twice: two to the thirtieth if all are looked at.
    let mut laughs = b"\x80\x02}X\x01\0\0\0a]q\x000".to_vec();
    for level in 1..30 {
        laughs.extend([b']', b'q', level, b'(', b'h', level - 1, b'h', level - 1, b'e', b'0']);
    }
    laughs.extend_from_slice(b"h\x1ds.");
    add(&mut seeds, "laughs", &[PICKLE], &laughs);
    // Dictionaries that hold the one before many times: names without end.
    let mut names = [&whole[..2], b"}q\xc8X\x01\0\0\0w", &whole[2..], b"s0"].concat();
    for level in 0xc9..0xcf {
        names.extend([b'}', b'q', level, b'(']);
        for key in b'a'..b'm' {
            names.extend([b'X', 1, 0, 0, 0, key, b'h', level - 1]);
        }
        names.extend_from_slice(b"u0");
    }
    names.extend_from_slice(b"h\xce.");
    add(&mut seeds, "names", &[PICKLE], &names);
    seeds
}
