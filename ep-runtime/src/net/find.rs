//! The places on this machine that may have libfabric, in order of preference.
//!
//! Nothing is loaded here. `xtask` includes the file too: `cargo xtask setup` must search exactly the
//! places that the run time will search.

use std::env;
use std::path::PathBuf;

use super::Search;

/// The environment variable that names the libfabric to use: the library, or its folder.
pub const VARIABLE: &str = "EPFORGE_LIBFABRIC";

/// The name under which every version since 1.0 is installed.
const FILE: &str = "libfabric.so.1";

/// Everything that is found, best first: what the variable names, or else what lies in a `.cuda` folder
/// at or above the current directory, and then in the system.
pub(crate) fn libraries(search: &Search) -> Vec<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        return vec![if named.is_dir() { named.join(FILE) } else { named }];
    }
    let system = search.system.iter().map(|folder| folder.join(FILE));
    search.project_files(FILE).into_iter().chain(system.filter(|path| path.is_file())).collect()
}
