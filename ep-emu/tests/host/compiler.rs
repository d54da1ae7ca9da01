//! Which compiler is taken.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use ep_emu::{Build, CompileError, Compiler, Launch};

use crate::support::{alloc, compile, kept, launch, source, words, world};

/// What `$CXX` names is taken or refused by name; nothing else takes its place.
#[test]
fn a_named_compiler_that_does_not_run_is_an_error() {
    let find = |named: &str| Compiler::named(named, Arc::new(kept()));
    let said = |named: &str| find(named).unwrap_err().to_string();
    let missing = said("no-such-compiler -O2");
    assert!(
        missing.starts_with("CXX names `no-such-compiler -O2`, which does not run: "),
        "{missing}"
    );
    assert_eq!(
        said("false"),
        "CXX names `false`, which does not run: `--version` ends with exit status: 1"
    );
    for named in ["", "  ", "c++", "env c++"] {
        assert!(find(named).is_ok(), "{named}");
    }
}

/// A disk that is full is no mistake of the text.
#[test]
fn a_machine_at_its_end_is_told_from_a_wrong_text() {
    let shelf = Arc::new(kept());
    let folder = ep_emu::Shelf::folder(&*shelf).unwrap();
    let compiler = folder.as_ref().as_ref().join("compiler.sh");
    let said = |words: &str| {
        let script =
            format!("case \"$*\" in *--version) exit 0;; esac\necho '{words}' >&2\nexit 1\n");
        fs::write(&compiler, script).unwrap();
        let named = format!("sh {}", compiler.display());
        let compiler = Compiler::named(&named, Arc::clone(&shelf) as _).unwrap();
        compiler.compile(&source("basics.cu", &[]), Build::Plain).unwrap_err()
    };
    let full = said("/tmp/x.s: fatal error: No space left on device");
    assert!(matches!(full, CompileError::Io(..)), "{full}");
    assert!(full.to_string().ends_with("fatal error: No space left on device"), "{full}");
    assert!(matches!(said("basics.cu:1: error: x"), CompileError::Refused(_)));
}

/// Some compilers do not know how: g++ before 12.
#[test]
fn a_variable_without_a_value_does_not_hold_what_stood_there() {
    let mut knows = Command::new("c++");
    knows.args(["-ftrivial-auto-var-init=pattern", "-x", "c++", "-E", "/dev/null"]);
    if !knows.output().is_ok_and(|output| output.status.success()) {
        return;
    }
    for build in [Build::Fast, Build::Plain, Build::Checked, Build::Sanitized] {
        let program = compile(&source("unset.cu", &[]), build);
        let mut world = world(1, 1);
        let out = alloc(&mut world, 0, 1024, "out");
        let launch =
            Launch { args: out.0.to_le_bytes().to_vec(), ..launch(&program, "unset", 1, 32) };
        world.run(vec![vec![launch]]).unwrap_or_else(|failure| panic!("{failure}"));
        let held = words(&world, out, 256);
        // One byte over and over.
        let is_pattern = |word: &u32| *word != 7 && *word == (word & 0xff) * 0x0101_0101;
        assert!(held.iter().all(|word| is_pattern(word) && *word != 0), "{build:?}: {held:x?}");
    }
}
