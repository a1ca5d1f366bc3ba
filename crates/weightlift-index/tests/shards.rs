//! Folders and index files that broke loaders. The ids in comments name the case of a test.

mod common;

use common::{Values, assert_error, shard};
use weightlift_index::shards::{Choice, ShardIndex, assemble, check_present, choose, parse_index};
use weightlift_index::{Error, ErrorKind, Index, Limits, Value};

fn index(weight_map: &str) -> Result<ShardIndex, Error> {
    parse_index(format!(r#"{{"weight_map":{{{weight_map}}}}}"#).as_bytes(), &Limits::default())
}

fn files(files: &[(&str, &[&str])]) -> Vec<Index> {
    let file = |&(name, tensors): &(&str, &[&str])| {
        shard(tensors).into_index(name, 8 + 4 * tensors.len() as u64).unwrap()
    };
    files.iter().map(file).collect()
}

/// Tensors with the file they come from.
fn contents(index: &Index) -> Vec<(&str, &str)> {
    let file = |storage: u32| {
        let source = index.storages[storage as usize].source;
        &*index.sources[source.0 as usize].name
    };
    index.tensors.iter().map(|tensor| (&*tensor.name, file(tensor.storage.0))).collect()
}

// IX-01. Files were filtered by the index but the index never checked against the files: weights
// stayed uninitialised and answers were wrong.
#[test]
fn missing_files_are_an_error_that_lists_them_all() {
    let index = index(r#""a":"1","b":"2","c":"3""#).unwrap();
    check_present(&index, |_| true).unwrap();
    let values = [("shards", "1, 3"), ("count", "2"), ("of", "3")];
    assert_error(check_present(&index, |name| name == "2"), ErrorKind::MissingShards, &values);
    let values = [("shards", "1, 2, 3"), ("count", "3")];
    assert_error(check_present(&index, |_| false), ErrorKind::MissingShards, &values);
    // Headers of fewer files than the index names are caught too.
    let result = assemble(files(&[("1", &["a"]), ("2", &["b"])]), Some(&index));
    assert_error(result, ErrorKind::MissingShards, &[("shards", "3")]);
}

// IX-02. A file holds a stale copy of a tensor that the index maps to another file.
#[test]
fn the_index_decides_for_each_tensor() {
    let index = index(r#""a":"1","x":"2""#).unwrap();
    let (first, second) = (("1", &["a", "x"][..]), ("2", &["x", "stray"][..]));
    let found = assemble(files(&[first, second]), Some(&index)).unwrap();
    assert_eq!(contents(&found), [("a", "1"), ("x", "2")]);
    assert_eq!(found.skipped_tensors, 2);
    found.validate().unwrap();
    let found = assemble(files(&[second, first]), Some(&index)).unwrap();
    assert_eq!(contents(&found), [("x", "2"), ("a", "1")]);
    assert_eq!((found.skipped_tensors, found.bytes()), (2, 8));
}

// IX-02. The index maps a tensor to a file that does not have it.
#[test]
fn a_tensor_that_its_file_lacks_is_an_error() {
    let index = index(r#""a":"1","c":"2","b":"2","d":"2""#).unwrap();
    // `b` is there, but in the wrong file.
    let result = assemble(files(&[("1", &["a", "b"]), ("2", &["d"])]), Some(&index));
    let values = [("tensor", "b"), ("file", "2"), ("count", "2")];
    assert_error(result, ErrorKind::NotInShard, &values);
}

// IX-02. A file beside the model that the index does not name holds nothing of it.
#[test]
fn a_file_that_the_index_does_not_name_is_left_out() {
    let index = index(r#""a":"1""#).unwrap();
    let found = assemble(files(&[("other", &["a", "b"]), ("1", &["a"])]), Some(&index)).unwrap();
    assert_eq!(contents(&found), [("a", "1")]);
    assert_eq!(found.skipped_tensors, 2);
}

// IX-04. A consolidated copy beside the shards: reading both doubles the work, and which copy wins
// is chance.
#[test]
fn a_consolidated_copy_is_not_read_beside_the_shards() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (a, b) = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors");
    let folder = names(&["consolidated.safetensors", a, b, "model.safetensors.index.json"]);
    let choice = choose(&folder, false, None).unwrap();
    assert_eq!(choice, Choice::Index("model.safetensors.index.json".into()));
    let values = [("files", &*format!("consolidated.safetensors, {a}, {b}"))];
    assert_error(choose(&folder[..3], false, None), ErrorKind::AmbiguousModel, &values);
    assert_eq!(choose(&folder, true, None).unwrap(), Choice::Files(names(&[a, b])));
}

// IX-04. Without an index nothing says which copy is meant.
#[test]
fn a_tensor_in_two_files_is_an_error_that_names_both() {
    let result = assemble(files(&[("1", &["a"]), ("2", &["b", "a"])]), None);
    let values = [("tensor", "a"), ("file", "2"), ("other_file", "1")];
    assert_error(result, ErrorKind::DuplicateTensor, &values);
    let index = index(r#""a":"1""#).unwrap();
    for index in [None, Some(&index)] {
        let result = assemble(files(&[("1", &["a"]), ("1", &["a"])]), index);
        assert_error(result, ErrorKind::AmbiguousModel, &[("file", "1")]);
    }
}

// IX-05. A value of `weight_map` that opens any file of the machine, or over HTTP another
// repository with the user's token.
#[test]
fn unsafe_file_names_never_leave_the_parser() {
    let names = [
        "../x",
        "/etc/hostname",
        "C:\\x",
        "\\\\h\\s",
        "a/../../x",
        "%2e%2e/x",
        "s\\..\\x",
        "",
        "a\0",
    ];
    for name in names {
        let quoted = serde_json::to_string(name).unwrap();
        let result = index(&format!(r#""ok":"model.safetensors","w":{quoted}"#));
        assert_error(result, ErrorKind::UnsafePath, &[("path", name), ("tensor", "w")]);
    }
}

// IX-08. An index file left from an older export names more files than the model has.
#[test]
fn an_outdated_index_can_be_ignored() {
    let index = index(r#""a":"1","b":"2","c":"3","d":"4""#).unwrap();
    let hint = |present: fn(&str) -> bool| {
        let error = check_present(&index, present).unwrap_err();
        error.get_hint().is_some_and(|hint| hint.contains("--ignore-index"))
    };
    assert!(hint(|name| name < "3"));
    assert!(!hint(|_| false));
    let names = ["1.safetensors".to_owned(), "2.safetensors".to_owned()];
    assert_eq!(choose(&names, true, None).unwrap(), Choice::Files(names.to_vec()));
    let found = assemble(files(&[("1", &["a"]), ("2", &["b"])]), None).unwrap();
    assert_eq!(contents(&found), [("a", "1"), ("b", "2")]);
}

#[test]
fn an_index_file_is_parsed_whole() {
    let text = r#" {"metadata": {"total_size": 12, "total_parameters": 1.5, "ok": true, "by": "x",
        "nothing": null, "list": [1, {"a": 2}]},
        "weight_map": {"a": "m2", "b": "m1", "\u0063": "m2"}, "else": [1]}
    "#;
    let parsed = parse_index(text.as_bytes(), &Limits::default()).unwrap();
    assert_eq!(parsed.shards, ["m1".into(), "m2".into()] as [Box<str>; 2]);
    let mut map: Vec<_> = parsed.weight_map.iter().map(|(k, v)| (&**k, *v)).collect();
    map.sort_unstable();
    assert_eq!(map, [("a", 1), ("b", 0), ("c", 1)]);
    let metadata: Vec<_> = parsed.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expected = [("by", "x"), ("ok", "true"), ("total_parameters", "1.5"), ("total_size", "12")];
    assert_eq!(metadata, expected);
}

#[test]
fn an_index_file_that_is_not_one_is_refused() {
    use ErrorKind::{DuplicateMetadata, DuplicateTensor, InvalidIndex, LimitExceeded};
    let table: &[(&[u8], ErrorKind, Values)] = &[
        (b"", InvalidIndex, &[("line", "1")]),
        (b"[]", InvalidIndex, &[("line", "1")]),
        (b"{}", InvalidIndex, &[("key", "weight_map")]),
        (br#"{"weight_map":{}}"#, InvalidIndex, &[("key", "weight_map")]),
        (br#"{"weight_map":{"a":1}}"#, InvalidIndex, &[("tensor", "a")]),
        (br#"{"weight_map":{"a":"1"},"weight_map":{}}"#, InvalidIndex, &[("key", "weight_map")]),
        (b"{\"weight_map\":\n{\"a\":\"1\",}}", InvalidIndex, &[("line", "2")]),
        (b"\xef\xbb\xbf{\"weight_map\":{\"a\":\"1\"}}", InvalidIndex, &[]),
        (b"{\"weight_map\":{\"a\":\"\xff\"}}", InvalidIndex, &[("column", "21")]),
        (
            br#"{"weight_map":{"a":"1","a":"2"}}"#,
            DuplicateTensor,
            &[("tensor", "a"), ("file", "2"), ("other_file", "1")],
        ),
        (br#"{"weight_map":{"a":"1","a":"1"}}"#, DuplicateTensor, &[("tensor", "a")]),
        (br#"{"metadata":{"k":1,"k":null}}"#, DuplicateMetadata, &[("key", "k")]),
        (
            br#"{"weight_map":{"a":"1","b":"1","c":"1"}}"#,
            LimitExceeded,
            &[("option", "tensors"), ("limit", "2")],
        ),
    ];
    for (text, kind, values) in table {
        assert_error(parse_index(text, &Limits::default().with_tensors(2)), *kind, values);
    }
    let values = [("option", "index_bytes"), ("limit", "9"), ("actual", "10")];
    let result = parse_index(b"          ", &Limits::default().with_index_bytes(9));
    assert_error(result, LimitExceeded, &values);
}

#[test]
fn storages_follow_the_files_and_metadata_the_first_of_them() {
    let mut given = files(&[("1", &["a", "b"]), ("2", &["c"])]);
    let mut add = |file: usize, key: &str, value: &str| {
        given[file].metadata.insert(key.to_owned(), Value::from(value));
    };
    add(0, "format", "pt");
    add(1, "format", "np");
    add(1, "more", "x");
    given[1].storages[0].length = 0;
    given[1].tensors[0].length = 0;
    let found = assemble(given, None).unwrap();
    found.validate().unwrap();
    let storages: Vec<_> =
        found.storages.iter().map(|s| (s.source.0, s.offset, s.length)).collect();
    assert_eq!(storages, [(0, 8, 4), (0, 12, 4), (1, 8, 0)]);
    assert_eq!(found.metadata["format"].as_text(), Some("pt"));
    assert_eq!(found.metadata["more"].as_text(), Some("x"));
    assert_eq!(found.tensor("c").map(|tensor| tensor.length), Some(0));
}
