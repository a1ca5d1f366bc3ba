//! The project's chores: `cargo xtask <command>`.

mod cargo;
#[cfg(test)]
mod cases;
mod defects;
mod engines;
mod fake_cuda;
mod fuzz;
mod layers;
mod python;
mod runner;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
Usage: cargo xtask <command>

Commands:
  test            set up what the tests need, run all of them, print the counts
  test --torch    the same with PyTorch, which is large, for the tests that compare with it
  layers          check who may import whom, where unsafe and cfg may stand
  layers --table  print the import table as Markdown
  defects [PART]  plant the known defects (those with PART in their names) in a copy, one after
                  the other, and see that the tests find them; takes minutes
  defects --check see that every known defect can still be planted
  fuzz [--seconds N] [TARGET]...
                  run the fuzz targets, all or those named, for N seconds each (60), two at a time
  fuzz --seeds    write the inputs that fuzzing begins with
  fake-cuda       build the driver for tests as libcuda.so.1 and print its folder
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["test"] => test::run(&python::BASE),
        ["test", "--torch"] => test::run(&python::TORCH),
        ["layers"] => layers::run(),
        ["layers", "--table"] => {
            print!("{}", layers::table::markdown());
            Ok(ExitCode::SUCCESS)
        }
        ["defects"] => defects::run(""),
        ["defects", "--check"] => defects::check(),
        ["defects", part] if !part.starts_with('-') => defects::run(part),
        ["fuzz", "--seeds"] => fuzz::write_seeds(),
        ["fuzz", ref arguments @ ..] => fuzz::run(arguments),
        ["fake-cuda"] => {
            println!("{}", fake_cuda::build()?.display());
            Ok(ExitCode::SUCCESS)
        }
        [] | ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("unknown command `{}`\n\n{HELP}", arguments.join(" ")),
    }
}
