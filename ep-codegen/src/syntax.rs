//! From tokens to the syntax tree.

pub mod ast;
mod expr;
mod items;
pub mod keywords;
mod parse;
pub mod print;
mod role;
mod source;
mod stmt;
mod stream;
mod tensor;

pub use parse::parse;
pub use source::blocks;

#[cfg(test)]
mod tests;
