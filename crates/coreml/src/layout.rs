//! Layouts of packages: how other projects' programs want a model's files, functions and features.

pub mod names;
