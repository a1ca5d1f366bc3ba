use crate::args::Demo;
use crate::error::Failure;
use crate::signal::Stop;
pub(crate) fn run(_options: &Demo, _stop: &Stop) -> Result<(), Failure> {
    Ok(())
}
