//! The `pipeline!` macro. `ep-codegen` does all of the work; only this crate touches the file system, to read
//! the C++ of `cuda fn .. from "file"` and files of fragments.

use proc_macro::TokenStream;

/// Declares pipelines; see `docs/dsl.md` for the language.
#[proc_macro]
pub fn pipeline(tokens: TokenStream) -> TokenStream {
    ep_codegen::expansion::expand(tokens.into(), &load).into()
}

/// Reads a file by its path relative to the crate that declares the pipeline.
fn load(path: &str) -> Result<String, String> {
    let root = std::env::var("CARGO_MANIFEST_DIR")
        .map_err(|_| "cargo did not say where the crate is".to_string())?;
    std::fs::read_to_string(std::path::Path::new(&root).join(path))
        .map_err(|error| error.to_string())
}
