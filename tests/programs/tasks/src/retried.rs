//! Tasks that fail in different ways until a given attempt.

use std::time::Duration;

use sandbar_guest::prelude::*;
use sandbar_guest::{Code, RetryOn};

/// Counts attempts.
struct Tries(u32);

#[actor]
impl Tries {
    pub fn new() -> Tries {
        Tries(0)
    }

    pub fn next(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }
}

/// Fails in the way `failure` before its third attempt, and returns the number of the attempt.
#[task]
fn third(tries: TriesHandle, failure: String) -> Result<u32, String> {
    let this = tries.next().get().map_err(|error| error.to_string())?;
    match failure.as_str() {
        _ if this == 3 => Ok(this),
        "panic" => panic!("on purpose"),
        "time-out" => Err(format!("it has ended: {}", super::spins())),
        _ => Err("on purpose".to_owned()),
    }
}

/// Returns the results of such tasks, and their attempts.
#[task]
fn retried() -> Result<String, TaskError> {
    let outcome = |failure: &str, retries: u32, retry_on: RetryOn| {
        let tries = Tries::submit();
        let options = third::options().max_retries(retries).retry_on(retry_on).timeout(Duration::from_millis(200));
        let result = options.submit(&tries, failure.to_owned()).get();
        let tried = tries.next().get()? - 1;
        Ok(match result {
            Ok(_) => format!("{tried} ok"),
            Err(error) => format!("{tried} {}", error.fault.code.as_str()),
        })
    };
    let all: Result<Vec<String>, TaskError> = [
        outcome("refused", 2, RetryOn::System),
        outcome("refused", 2, RetryOn::All),
        outcome("refused", 1, RetryOn::All),
        outcome("refused", 2, Code::Refused.into()),
        outcome("refused", 2, [Code::TimeOut, Code::Panic].into()),
        outcome("panic", 2, [Code::TimeOut, Code::Panic].into()),
        outcome("time-out", 2, [Code::TimeOut, Code::Panic].into()),
        outcome("time-out", 2, RetryOn::System),
    ]
    .into_iter()
    .collect();
    Ok(all?.join(", "))
}
