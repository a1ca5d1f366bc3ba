//! The XML of OpenVINO networks: ways to write it, and what is no XML or none that is read.

mod common;

use common::assert_error;
use common::openvino::{Const, GOOD, body, layer, many, names, net, read};
use proptest::prelude::*;
use weightlift_index::openvino::parse;
use weightlift_index::{Bytes, Error, ErrorKind, Limits};

#[test]
fn the_text_may_be_written_in_any_way_that_means_the_same() {
    let good = GOOD.net();
    let data = GOOD.data();
    let same = [
        good.replace(&data, "<data size='16'\n\toffset = '0' shape=\"4\" element_type='f32'></data>"),
        good.replace(
            &data,
            "<data element_type=\"f&#51;2\" shape=\"&#x34;\" offset=\"0\" size=\"1&#54;\" other=\"\"/>",
        ),
        good.replace(&data, &format!("<!-- x --><new a='1'><b/></new>{data}<z/>")),
        good.replace("<?xml version=\"1.0\"?>\n", ""),
        good.replace("<?xml version=\"1.0\"?>", "\u{feff}<?xml version='1.0' encoding='utf-8'?>"),
        good.replace("version=\"11\"", "version='10'"),
        good.replace("<layers>", "<!----><layers>&amp;<![CDATA[<]]>text<?a b?>"),
        format!("\r\n {good}\n<!-- end -->\n"),
    ];
    for text in same {
        let index = read(&text, 16).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((&*index.tensors[0].name, index.tensors[0].length), ("w", 16), "{text}");
    }
    let named = |name| names(&Const { name, ..GOOD }.net()).remove(0);
    assert_eq!(named("a&amp;b&lt;&quot;&#10;é"), "a&b<\"\né");
    assert_eq!(named("a\nb\tc\r\nd<e>'"), "a b c d<e>'");
}

#[test]
fn other_versions_are_not_read() {
    for version in ["9", "12", "7", "2", "", "x", "11.5", "011", " 11", "-11"] {
        let text = GOOD.net().replace("version=\"11\"", &format!("version=\"{version}\""));
        let values = [("actual", version), ("expected", "10 or 11")];
        assert_error(read(text, 16), ErrorKind::Unsupported, &values);
    }
    let none = GOOD.net().replace(" version=\"11\"", "");
    assert_error(read(none, 16), ErrorKind::InvalidHeader, &[("key", "version")]);
}

#[test]
fn what_is_no_network_is_named_as_what_it_is() {
    let table: [(&[u8], &str); 14] = [
        (b"", "a file of unknown format"),
        (b"<net/>", "a file of unknown format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
        (b"<?xml version='1.0'?><html>", "a web page"),
        (b"<?xml version='1.0'?><!DOCTYPE html PUBLIC \"x\">", "a web page"),
        (b"<?xml version='1.0'?><svg width='1'/>", "XML with the root element <svg>"),
        (b"<ov:net version='11'></ov:net>", "XML with the root element <ov:net>"),
        (b"<!DOCTYPE svg [<!ENTITY a 'b'>]><svg/>", "XML with the root element <svg>"),
        (b"<!-- nothing else -->", "XML without an element"),
        (b"<?xml version='1.0'?><compiled_blob a='b'/>\nOVCPU_RR", "a cached blob of OpenVINO"),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive"),
        (b"{\"a\": 1, \"b\": 2}", "a JSON file"),
        (b"\x08\x07\x12\x07pytorch", "an ONNX model"),
    ];
    for (bytes, found) in table {
        assert_error(read(bytes, 16), ErrorKind::UnknownFormat, &[("found", found)]);
    }
}

// Entities that stand for others, a billion times over, or for other files.
#[test]
fn a_document_type_is_refused_and_no_entity_expanded() {
    let types = [
        "<!DOCTYPE net>",
        "<!doctype net>",
        "<!DOCTYPE net SYSTEM \"file:///etc/hostname\">",
        "<!DOCTYPE net [<!ENTITY a \"f32\">]>",
        "<!DOCTYPE net [<!ENTITY a \"&b;&b;\"><!ENTITY b \"&c;&c;\"><!ENTITY % p '>'>]>",
    ];
    for kind in types {
        let text = GOOD.net().replace("<net", &format!("{kind}<net"));
        assert_error(read(text, 16), ErrorKind::Unsupported, &[]);
    }
    for name in ["a&b;c", "a & b", "a&", "&amp", "&#0;", "&#xD800;", "&#x110000;", "&#-1;"] {
        let result = read(Const { name, ..GOOD }.net(), 16);
        assert_error(result, ErrorKind::InvalidHeader, &[("key", "name")]);
    }
}

#[test]
fn other_encodings_are_refused() {
    let declared = |encoding: &str| {
        GOOD.net().replace("?>", &format!(" encoding=\"{encoding}\"?>")).into_bytes()
    };
    for encoding in ["utf-8", "UTF-8", "us-ascii"] {
        assert!(read(declared(encoding), 16).is_ok());
    }
    for encoding in ["UTF-16", "ISO-8859-1", "windows-1251", ""] {
        let values = [("found", encoding)];
        assert_error(read(declared(encoding), 16), ErrorKind::Unsupported, &values);
    }
    for (bom, wide) in
        [(b"\xff\xfe", u16::to_le_bytes as fn(u16) -> [u8; 2]), (b"\xfe\xff", u16::to_be_bytes)]
    {
        let text = GOOD.net().encode_utf16().flat_map(wide).collect::<Vec<u8>>();
        let values = [("found", "UTF-16")];
        assert_error(read([&bom[..], &text].concat(), 16), ErrorKind::Unsupported, &values);
    }
    for place in ["name=\"w", "<edges>", "</net>"] {
        let mut bytes = GOOD.net().into_bytes();
        let at = GOOD.net().find(place).unwrap() + place.len();
        bytes.insert(at, 0xe9);
        assert_error(read(bytes, 16), ErrorKind::InvalidHeader, &[]);
    }
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let whole = net(&(GOOD.layer() + &layer("x", "Loop", &body("body", &GOOD.layer()))));
    let (root, end) = (whole.find("<net").unwrap(), whole.trim_end().len());
    assert!(read(&whole[..end], 16).is_ok());
    for cut in 0..end {
        let error = read(&whole[..cut], 16).unwrap_err();
        let kinds = [ErrorKind::Truncated, ErrorKind::UnknownFormat];
        assert!(kinds.contains(&error.kind()), "{error}\n{}", &whole[..cut]);
        assert!(cut <= root || error.kind() == ErrorKind::Truncated, "{error}\n{}", &whole[..cut]);
    }
}

#[test]
fn what_is_not_well_formed_is_refused_also_where_nobody_looks() {
    let good = GOOD.net();
    let edge = "<edges>";
    let wrong = [
        good.replace("</layers>", "</layer>"),
        good.replace("</layers>", ""),
        good.replace(edge, "<edges><a b=c/>"),
        good.replace(edge, "<edges><a b/>"),
        good.replace(edge, "<edges><a b='1' b='2'/>"),
        good.replace(edge, "<edges></a>"),
        good.replace(edge, "<edges>& x"),
        good.replace("size=", "size=\"16\" size="),
        good.replace("<net ", "<net version='11' "),
        format!("{good}x"),
        format!("{good}<net/>"),
        format!("{good}</net>"),
        format!("{good}&amp;"),
        format!("{good}<![CDATA[]]>"),
        format!("{good}\0"),
        good.replace("<net ", "&lt;<net "),
        good.replace("<?xml", "<x/><?xml").replace("<x/>", "<!-- -->text"),
    ];
    for text in wrong {
        assert_error(read(&text, 16), ErrorKind::InvalidHeader, &[]);
    }
}

#[test]
fn an_error_of_the_reader_comes_back_as_it_is() {
    struct Broken(Vec<u8>, u64);
    impl Bytes for Broken {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
            if offset >= self.1 {
                return Err(Error::new(ErrorKind::Io, "the disk is gone").with("path", "x"));
            }
            self.0.as_slice().read_at(offset, buffer)
        }
    }
    let text = many(1000).into_bytes();
    for from in [0, 1, 50_000] {
        let result = parse(&mut Broken(text.clone(), from), &Limits::default());
        let error = result.as_ref().unwrap_err();
        assert_eq!(error.message(), "the disk is gone");
        assert_error(result, ErrorKind::Io, &[("path", "x")]);
    }
}

// Before quick-xml 0.41 the check for attributes that stand twice took quadratic time.
#[test]
fn many_attributes_in_one_tag_take_linear_time() {
    let attributes = (0..300_000).map(|i| format!(" a{i}='{i}'")).collect::<String>();
    let text = GOOD.net().replace("<edges>", &format!("<edges{attributes}>"));
    assert_eq!(names(&text), ["w"]);
}

/// A network of many constants that is nowhere whole: a start, one layer again and again, of a
/// length that divides what is read at a time, and an end.
struct Generated {
    layers: u64,
    most: usize,
}

const LAYER: u64 = 128;

impl Generated {
    fn part(&self, number: u64) -> String {
        let text = match number {
            0 => "<net version=\"11\"><layers>".to_owned(),
            n if n > self.layers => "</layers></net>".to_owned(),
            n => format!(
                "<layer id=\"{n}\" name=\"{n}\" type=\"Const\" version=\"\"><data \
                 element_type=\"u8\" shape=\"1\" offset=\"{n}\" size=\"1\"/></layer>"
            ),
        };
        format!("{text:<width$}", width = LAYER as usize)
    }
}

impl Bytes for Generated {
    fn length(&self) -> u64 {
        (self.layers + 2) * LAYER
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.most = self.most.max(buffer.len());
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let part = self.part(at / LAYER);
            let from = &part.as_bytes()[(at % LAYER) as usize..];
            let count = from.len().min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&from[..count]);
            rest = later;
            at += count as u64;
        }
        Ok(())
    }
}

// Read in pieces, and each of its constants found. The benchmark has a million of them.
#[test]
fn many_constants_stream_by() {
    let mut xml = Generated { layers: 100_000, most: 0 };
    assert_eq!(xml.part(100_000).len() as u64, LAYER, "a layer fits its place");
    let network = parse(&mut xml, &Limits::default()).unwrap();
    assert!(xml.most <= 1 << 20, "{} bytes at once", xml.most);
    let index = network.into_index(Some(("w.bin", 100_001))).unwrap();
    assert_eq!((index.tensors.len(), index.storages.len()), (100_000, 100_000));
    let last = &index.tensors[99_999];
    assert_eq!((&*last.name, index.storages[last.storage.0 as usize].offset), ("100000", 100_000));
}

fn verdict(bytes: &[u8]) {
    let limits = Limits::default().with_text_bytes(1 << 16).with_tensors(100);
    let Ok(network) = parse(&mut &*bytes, &limits) else {
        return;
    };
    if let Ok(index) = network.into_index(Some(("w.bin", 1000))) {
        index.validate().unwrap();
        let mut names: Vec<_> = index.tensors.iter().map(|tensor| &tensor.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), index.tensors.len(), "names are unique");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        verdict(&bytes);
        verdict(&[b"<net version=\"11\"><layers>", &*bytes].concat());
    }

    #[test]
    fn arbitrary_markup_is_read_or_refused(parts in prop::collection::vec(
        prop::sample::select(vec![
            "<net version='11'>", "</net>", "<layers>", "</layers>", "<body>", "</body>", "</layer>",
            "<layer id='1' name='w' type='Const' version='x'>", "<rt_info>", "</rt_info>", "<rt_info/>",
            "<layer id='1' name='l' type='Loop' version='x'>", "<data/>", "<!--", "-->", "<![CDATA[",
            "]]>", "<data element_type='u3' shape='9' offset='0' size='6'/>", "&amp;", "&", "<a value='1'>",
            "<data element_type='string' shape='' offset='2' size='7'/>", "</a>", "<?x", "?>", ">", "'",
        ]), 0..40,
    )) {
        verdict(parts.concat().as_bytes());
    }

    #[test]
    fn a_spoilt_network_is_read_or_refused(
        edits in prop::collection::vec((0_usize..3, any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let loops = layer("x", "Loop", &body("body", &GOOD.layer()));
        let mut bytes = net(&(GOOD.layer() + &loops)).into_bytes();
        for (edit, place, byte) in edits {
            let at = place.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        verdict(&bytes);
        bytes.truncate(bytes.len() / 2);
        verdict(&bytes);
    }
}
