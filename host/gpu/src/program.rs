//! The program `host-gpu`.

use std::io::{self, Write as _};

use sandbar_dense::remote::{LIST_ARGUMENT, SERVE_ARGUMENT, SOFTWARE_ARGUMENT};

use crate::{server, software};

/// Argument for measuring the listed GPUs.
const MEASURE_ARGUMENT: &str = "--measure";

/// Serves a node, or lists GPUs, according to the arguments.
///
/// # Errors
/// Fails for other arguments, and with the errors of the command.
pub fn run_gpu(arguments: &[String]) -> io::Result<()> {
    let Some((command, options)) = arguments.split_first() else {
        return Err(io::Error::other("this program is started by `host`"));
    };
    if options.iter().any(|option| option == SOFTWARE_ARGUMENT) {
        software::use_software()?;
    }
    match command.as_str() {
        SERVE_ARGUMENT => server::serve(io::stdin()),
        LIST_ARGUMENT => {
            let listed = server::list(options.iter().any(|option| option == MEASURE_ARGUMENT));
            let text = serde_json::to_string(&listed).map_err(io::Error::other)?;
            writeln!(io::stdout(), "{text}")
        }
        _ => Err(io::Error::other("this program is started by `host`")),
    }
}
