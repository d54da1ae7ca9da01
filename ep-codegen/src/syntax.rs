//! From tokens to the syntax tree.

mod expr;
mod fragment;
mod items;
mod parse;
pub mod print;
pub mod reprint;
mod role;
mod rust_file;

mod stmt;
mod stream;
mod tensor;

pub use parse::parse;
pub use rust_file::blocks;

#[cfg(test)]
mod tests;
