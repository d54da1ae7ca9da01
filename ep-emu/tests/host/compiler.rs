//! Which compiler is taken.

use std::sync::Arc;

use ep_emu::Compiler;

use crate::support::kept;

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
