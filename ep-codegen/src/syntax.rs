//! From tokens to the syntax tree.

pub mod ast;
mod expr;
mod items;
pub mod keywords;
mod parse;
pub mod print;
mod role;
mod rust_file;

mod stmt;
mod stream;
mod tensor;

pub use parse::parse;
pub use rust_file::blocks;

#[cfg(test)]
mod tests;
