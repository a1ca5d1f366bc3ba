//! What one Rust file says that the rules are about, read from its tokens: comments and strings
//! do not count, macro bodies do.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::table;

/// One thing that a rule is about.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A path that begins at the crate's root and goes on with this name, `*` for all of it.
    Root(String),
    /// A mention of another crate of the workspace.
    Crate(String),
    /// The keyword `unsafe`.
    Unsafe,
    /// A `cfg` that asks for the platform, by this word.
    Platform(String),
}

/// A thing and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The line, from 1.
    pub line: usize,
    /// What stands there.
    pub thing: Thing,
    /// Whether it is compiled for tests only.
    pub test: bool,
}

/// All that was found in a file.
#[derive(Debug, Default)]
pub struct Scan {
    /// What the rules are about.
    pub found: Vec<Found>,
    /// Modules in files of their own that are declared for tests only, as paths from the root.
    pub test_modules: BTreeSet<Vec<String>>,
}

/// Reads `text`, the file of the module at `module` (empty for `lib.rs`).
pub fn scan(text: &str, module: &[String]) -> Result<Scan, proc_macro2::LexError> {
    let tokens: TokenStream = text.parse()?;
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut scan = Scan::default();
    let test = file_is_test(&tokens);
    walk(&tokens, &mut module.to_vec(), test, &mut scan);
    Ok(scan)
}

/// Whether `#![cfg(test)]` stands among the file's inner attributes.
fn file_is_test(tokens: &[TokenTree]) -> bool {
    tokens.windows(3).any(|window| {
        is_punct(&window[0], '#') && is_punct(&window[1], '!') && is_test_attribute(&window[2])
    })
}

fn walk(tokens: &[TokenTree], module: &mut Vec<String>, test: bool, scan: &mut Scan) {
    let mut at = 0;
    while at < tokens.len() {
        // An item under #[cfg(test)] is walked apart, attribute included.
        if !test && is_punct(&tokens[at], '#') && tokens.get(at + 1).is_some_and(is_test_attribute)
        {
            let end = at + 2 + item_length(&tokens[at + 2..]);
            walk(&tokens[at + 2..end], module, true, scan);
            at = end;
            continue;
        }
        at += match &tokens[at] {
            TokenTree::Ident(ident) => {
                let word = ident.to_string();
                let line = ident.span().start().line;
                let mut found = |thing| scan.found.push(Found { line, thing, test });
                match word.as_str() {
                    "unsafe" => {
                        found(Thing::Unsafe);
                        1
                    }
                    "mod" => module_declaration(&tokens[at..], module, test, scan),
                    "cfg" | "cfg_attr" => {
                        let arguments = &tokens[at + 1..tokens.len().min(at + 3)];
                        let predicate = arguments.iter().find_map(group_of(Delimiter::Parenthesis));
                        for word in predicate.iter().flat_map(|p| platform_words(&word, p)) {
                            scan.found.push(Found { line, thing: Thing::Platform(word), test });
                        }
                        1
                    }
                    "crate" | "super" if is_path_separator(&tokens[at + 1..]) => {
                        root_names(&tokens[at..], module)
                            .into_iter()
                            .for_each(|name| found(Thing::Root(name)));
                        // Past all the `super`s, so that none of them starts a path of its own.
                        supers(&tokens[at..]).max(1) * 3 - 2
                    }
                    "weightlift_index" | "weightlift_cuda_sys" => {
                        found(Thing::Crate(word.replace('_', "-")));
                        1
                    }
                    _ => 1,
                }
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                walk(&inner, module, test, scan);
                1
            }
            _ => 1,
        };
    }
}

/// `mod name;` or `mod name { ... }`; returns how many tokens were dealt with.
fn module_declaration(
    tokens: &[TokenTree],
    module: &mut Vec<String>,
    test: bool,
    scan: &mut Scan,
) -> usize {
    let [_, TokenTree::Ident(name), body, ..] = tokens else {
        return 1;
    };
    module.push(name.to_string());
    if let Some(inner) = group_of(Delimiter::Brace)(body) {
        walk(&inner, module, test, scan);
    } else if test && is_punct(body, ';') {
        scan.test_modules.insert(module.clone());
    }
    module.pop();
    3
}

/// The names by which a path that starts with `crate` or `super` goes on at the crate's root; none
/// if it does not get there.
fn root_names(tokens: &[TokenTree], module: &[String]) -> Vec<String> {
    let supers = supers(tokens);
    if supers > 0 && supers != module.len() {
        return Vec::new();
    }
    match &tokens[supers.max(1) * 3..] {
        [TokenTree::Ident(name), ..] => vec![name.to_string()],
        [TokenTree::Punct(punct), ..] if punct.as_char() == '*' => vec!["*".into()],
        [tree, ..] => group_of(Delimiter::Brace)(tree)
            .iter()
            .flat_map(|inner| inner.split(|t| is_punct(t, ',')))
            .filter_map(|part| part.first())
            .map(ToString::to_string)
            .filter(|name| name != "self")
            .collect(),
        [] => Vec::new(),
    }
}

/// How often `super::` stands at the start.
fn supers(tokens: &[TokenTree]) -> usize {
    tokens.chunks(3).take_while(|c| is_ident(&c[0], "super") && is_path_separator(&c[1..])).count()
}

/// How many tokens the item takes that begins here, with its further attributes.
fn item_length(tokens: &[TokenTree]) -> usize {
    const ITEMS: &[&str] = &[
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "union",
        "unsafe",
        "use",
    ];
    let mut at = 0;
    while at + 1 < tokens.len() && is_punct(&tokens[at], '#') {
        at += 2;
    }
    // Past `pub` and `pub(...)`.
    let first = tokens[at..]
        .iter()
        .find(|t| !is_ident(t, "pub") && group_of(Delimiter::Parenthesis)(t).is_none());
    let item = first.is_some_and(|t| ITEMS.iter().any(|word| is_ident(t, word)));
    let length = tokens[at..].iter().position(|t| {
        if item {
            is_punct(t, ';') || group_of(Delimiter::Brace)(t).is_some()
        } else {
            // A field, a variant, an arm, a statement.
            is_punct(t, ',') || is_punct(t, ';')
        }
    });
    length.map_or(tokens.len(), |length| at + length + 1)
}

/// Whether this is the bracket of `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_test_attribute(tree: &TokenTree) -> bool {
    let Some(attribute) = group_of(Delimiter::Bracket)(tree) else {
        return false;
    };
    let [name, predicate] = &attribute[..] else {
        return false;
    };
    let Some(predicate) = group_of(Delimiter::Parenthesis)(predicate) else {
        return false;
    };
    if !is_ident(name, "cfg") {
        return false;
    }
    match &predicate[..] {
        [only] => is_ident(only, "test"),
        [all, parts] if is_ident(all, "all") => group_of(Delimiter::Parenthesis)(parts)
            .is_some_and(|parts| {
                parts
                    .split(|t| is_punct(t, ','))
                    .any(|part| matches!(part, [word] if is_ident(word, "test")))
            }),
        _ => false,
    }
}

/// The words that ask for the platform in what stands between the parentheses of `cfg` (all of
/// it) or `cfg_attr` (up to the first comma).
fn platform_words(macro_name: &str, arguments: &[TokenTree]) -> Vec<String> {
    let predicate = match macro_name {
        "cfg_attr" => arguments.split(|t| is_punct(t, ',')).next().unwrap_or_default(),
        _ => arguments,
    };
    predicate
        .iter()
        .flat_map(|tree| match tree {
            TokenTree::Ident(ident) => {
                let word = ident.to_string();
                if table::PLATFORM.contains(&word.as_str()) { vec![word] } else { Vec::new() }
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                platform_words("cfg", &inner)
            }
            _ => Vec::new(),
        })
        .collect()
}

fn group_of(delimiter: Delimiter) -> impl Fn(&TokenTree) -> Option<Vec<TokenTree>> {
    move |tree| match tree {
        TokenTree::Group(group) if group.delimiter() == delimiter => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, ..] if is_punct(first, ':') && is_punct(second, ':'))
}

fn is_punct(tree: &TokenTree, character: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_ident(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Vec<String> {
        path.split("::").filter(|p| !p.is_empty()).map(str::to_owned).collect()
    }

    /// The names at the root that `text`, as the file of `at`, goes to outside its tests.
    fn roots(text: &str, at: &str) -> Vec<String> {
        scan(text, &module(at))
            .unwrap()
            .found
            .into_iter()
            .filter(|f| !f.test)
            .filter_map(|f| match f.thing {
                Thing::Root(name) => Some(name),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn every_way_to_name_a_room_is_seen() {
        for (text, at, expected) in [
            ("use crate::plan::Plan;", "read", vec!["plan"]),
            ("use crate::{plan::Plan, read, sync as s};", "load", vec!["plan", "read", "sync"]),
            (
                "fn f() -> crate::error::Error { crate::report::new() }",
                "load",
                vec!["error", "report"],
            ),
            ("use super::plan::Plan;", "read", vec!["plan"]),
            ("use super::super::plan::Plan;", "read::direct_linux", vec!["plan"]),
            ("use super::{plan, read};", "load", vec!["plan", "read"]),
            ("use super::piece::Piece;", "read::direct_linux", vec![]),
            ("use super::*;", "read", vec!["*"]),
            ("use crate::*;", "read", vec!["*"]),
            ("pub(crate) fn f() {} pub(super) fn g() {}", "read", vec![]),
            ("mod inner { use super::super::plan::Plan; use super::x; }", "read", vec!["plan"]),
            ("fn f() { println!(\"{}\", crate::plan::X); }", "read", vec!["plan"]),
            ("macro_rules! m { () => { $crate::plan::X } }", "read", vec!["plan"]),
            (
                "// crate::plan::X\nconst S: &str = \"crate::plan::X\"; /// [`crate::plan`]\nfn f() {}",
                "read",
                vec![],
            ),
            ("use crate::r#plan::X;", "read", vec!["r#plan"]),
        ] {
            assert_eq!(roots(text, at), expected, "{text}");
        }
    }

    #[test]
    fn what_is_compiled_for_tests_only_is_marked() {
        for text in [
            "#[cfg(test)] mod tests { use crate::device::Device; }",
            "#[cfg(all(test, unix))] mod tests { use crate::device::Device; }",
            "#[cfg(test)] #[allow(dead_code)] fn f<A, B>() { crate::device::x() }",
            "#[cfg(test)] pub(crate) use crate::device::{A, B};",
            "#![cfg(test)] use crate::device::Device;",
            "struct S { #[cfg(test)] a: crate::device::Device, b: u8 }",
        ] {
            assert_eq!(roots(text, "read"), Vec::<String>::new(), "{text}");
        }
        for text in [
            "#[cfg(test)] mod tests {} use crate::device::Device;",
            "#[cfg(not(test))] use crate::device::Device;",
            "#[cfg(any(test, loom))] use crate::device::Device;",
            "struct S { #[cfg(test)] a: u8, b: crate::device::Device }",
            "#[cfg(test)] use crate::x::{A}; use crate::device::Device;",
        ] {
            assert_eq!(roots(text, "read"), ["device"], "{text}");
        }
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_named() {
        let scan = scan("#[cfg(test)] mod tests; mod other;", &module("read")).unwrap();
        assert_eq!(scan.test_modules, BTreeSet::from([module("read::tests")]));
    }

    #[test]
    fn platform_questions_are_seen_wherever_they_hide() {
        for (text, expected) in [
            ("#[cfg(unix)] fn f() {}", vec!["unix"]),
            ("#[cfg(target_os = \"linux\")] fn f() {}", vec!["target_os"]),
            ("fn f() { if cfg!(windows) {} }", vec!["windows"]),
            ("#[cfg(all(not(target_family = \"unix\"), loom))] fn f() {}", vec!["target_family"]),
            ("#[cfg_attr(windows, allow(dead_code))] fn f() {}", vec!["windows"]),
            ("#[cfg_attr(loom, unix)] fn f() {}", vec![]),
            ("#[cfg(test)] mod tests { #[cfg(unix)] fn f() {} }", vec![]),
            ("#[cfg(feature = \"unix\")] fn f() { let windows = 1; }", vec![]),
        ] {
            let words: Vec<String> = scan(text, &module("read"))
                .unwrap()
                .found
                .into_iter()
                .filter(|f| !f.test)
                .filter_map(|f| match f.thing {
                    Thing::Platform(word) => Some(word),
                    _ => None,
                })
                .collect();
            assert_eq!(words, expected, "{text}");
        }
    }

    #[test]
    fn unsafe_is_seen_with_its_line_also_in_macros_and_attributes() {
        let text = "// unsafe\n#[unsafe(no_mangle)]\nfn f() {\n  m!(unsafe { });\n}\n#![deny(unsafe_code)]";
        let lines: Vec<usize> = scan(text, &[])
            .unwrap()
            .found
            .iter()
            .filter(|f| f.thing == Thing::Unsafe)
            .map(|f| f.line)
            .collect();
        assert_eq!(lines, [2, 4]);
    }
}
