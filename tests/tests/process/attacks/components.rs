//! Attacks by components: files that are none, that attack while they are loaded, and that are costly to compile.

use std::time::Duration;

use super::client::{Account, Program, describe};
use super::scene::Scene;
use super::{Attack, Kind, Outcome};
use crate::hostile::components::{HONEST, Wat, nested};
use crate::tenant_api::submission;

const fn door(
    name: &'static str,
    what: &'static str,
    attack: fn(&Scene, &Account) -> String,
    outcome: Outcome,
) -> Kind {
    Kind { name, what, attack: Attack::Door(attack), outcome }
}

use Outcome::{Either, Says};

#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    door("sends-nothing", "submits an empty component", |scene, by| submit(scene, by, Vec::new()), Says("component")),
    door("sends-text", "submits the text of a component", |scene, by| submit(scene, by, b"(component)".to_vec()), Says("not-a-component")),
    door("sends-a-library", "submits a native library", |scene, by| submit(scene, by, b"\x7fELF\x02\x01\x01".to_vec()), Says("not-a-component")),
    door("sends-a-beginning", "submits the first bytes of a component", |scene, by| submit(scene, by, b"\0asm".to_vec()), Says("not-a-component")),
    door("sends-a-module", "submits a core module", |scene, by| submit(scene, by, wat("(module (func (export \"attack\")))")), Says("not-a-component")),
    door("sends-a-half", "submits half of a component", |scene, by| submit(scene, by, half(HONEST.binary())), Says("not-a-component")),
    door("sends-damaged-components", "submits components with random bytes changed", damaged, Says("component")),
    door("sends-random-bytes", "submits random bytes after the header of a component", random, Says("not-a-component")),
    door("nests-components", "submits a component in 5,000 components", |scene, by| submit(scene, by, nested(&HONEST.binary(), 5_000)), Says("failed: ")),
    door("has-no-tasks", "submits a component without tasks", |scene, by| submit(scene, by, HONEST.binary()), Says("failed: ")),
    door("imports-sockets", "imports sockets", |scene, by| of(scene, by, Wat { outer: r#"(import "wasi:sockets/tcp@0.2.6" (instance))"#, ..HONEST }), Says("[import]")),
    door("imports-what-is-unknown", "imports an unknown interface", |scene, by| of(scene, by, Wat { outer: r#"(import "evil:corp/backdoor" (instance (export "run" (func))))"#, ..HONEST }), Says("[import]")),
    door("starts-for-ever", "loops while it is instantiated", |scene, by| of(scene, by, Wat { start: "(loop br 0)", ..HONEST }), Says("[time-out]")),
    door("starts-with-a-trap", "traps while it is instantiated", |scene, by| of(scene, by, Wat { start: "unreachable", ..HONEST }), Says("[trap]")),
    door("describes-for-ever", "loops while it describes its functions", |scene, by| of(scene, by, Wat { describe: "(loop br 0) unreachable", ..HONEST }), Says("[time-out]")),
    door("describes-two-billion", "describes two billion functions", |scene, by| of(scene, by, Wat { describe: "(i32.store (i32.const 12) (i32.const 0x7fffffff)) i32.const 8", ..HONEST }), Says("[bad-output]")),
    door("declares-4-gib", "declares a memory of 4 GiB", |scene, by| of(scene, by, Wat { memory: r#"(memory (export "memory") 65536)"#, ..HONEST }), Says("[memory-limit]")),
    door("declares-a-huge-table", "declares a table of ten million elements", |scene, by| of(scene, by, Wat { core: "(table 10000000 funcref)", ..HONEST }), Says("[compile]")),
    door("compiles-deep-blocks", "has a function of deeply nested blocks compiled", |scene, by| submit(scene, by, bomb(Bomb::Blocks, 30_000)), COSTLY),
    door("compiles-long-functions", "has a function of 200,000 operators compiled", |scene, by| submit(scene, by, bomb(Bomb::Operators, 200_000)), COSTLY),
    door("compiles-many-functions", "has 20,000 functions compiled", |scene, by| submit(scene, by, bomb(Bomb::Functions, 20_000)), COSTLY),
    door("compiles-by-the-dozen", "has a dozen costly components compiled at once", dozen, Says("component")),
];

/// Outcome of a component that takes long to compile: it is refused, or compiled and has no tasks.
const COSTLY: Outcome = Either(&Says("component"), &Says("failed: "));

fn wat(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn half(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() / 2);
    bytes
}

/// Submits a component, and returns the refusal.
/// Submits a component. Returns the refusal, or how its job ended.
fn submit(scene: &Scene, by: &Account, component: Vec<u8>) -> String {
    scene.runtime.block_on(async {
        let job = match by.submit(&Program::new(component), "attack", &[]).await {
            Ok(job) => job,
            Err(refusal) => return refusal,
        };
        let job = by.ended(&job, Duration::from_secs(60)).await.unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text(&job["state"]), text(&job["error"]["message"]))
    })
}

fn of(scene: &Scene, by: &Account, component: Wat) -> String {
    submit(scene, by, component.binary())
}

/// Returns the distinct answers to components.
fn each(scene: &Scene, by: &Account, components: impl Iterator<Item = Vec<u8>>) -> String {
    let all: std::collections::BTreeSet<String> = components.map(|component| submit(scene, by, component)).collect();
    all.into_iter().collect::<Vec<_>>().join("\n")
}

/// A sequence of numbers that are the same each time.
pub fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn damaged(scene: &Scene, by: &Account) -> String {
    let mut next = numbers(1);
    let components = (0..20).map(|_| {
        let mut component = HONEST.binary();
        for _ in 0..3 {
            let at = (next() % component.len() as u64) as usize;
            component[at] ^= next() as u8 | 1;
        }
        component
    });
    each(scene, by, components)
}

fn random(scene: &Scene, by: &Account) -> String {
    let mut next = numbers(2);
    let components = (0..20).map(|_| {
        let header = b"\0asm\x0d\0\x01\0".iter().copied();
        header.chain((0..500).flat_map(|_| next().to_le_bytes())).collect()
    });
    each(scene, by, components)
}

/// A component that is costly to compile.
#[derive(Clone, Copy)]
enum Bomb {
    Blocks,
    Operators,
    Functions,
}

fn bomb(kind: Bomb, count: usize) -> Vec<u8> {
    let core = match kind {
        Bomb::Blocks => {
            let (open, close) = ("block ".repeat(count), "end ".repeat(count));
            format!("(func (param i32) {open} local.get 0 br_if 0 {close})")
        }
        Bomb::Operators => {
            let operators = "local.get 0 local.get 1 i32.mul local.get 0 i32.add local.set 1 ".repeat(count / 6);
            format!("(func (param i32 i32) (result i32) {operators} local.get 1)")
        }
        Bomb::Functions => "(func (param i32) (result i32) local.get 0 i32.const 7 i32.mul)".repeat(count),
    };
    Wat { core: core.leak(), ..HONEST }.binary()
}

/// Submits a dozen different bombs at once, and returns their distinct answers.
fn dozen(scene: &Scene, by: &Account) -> String {
    let bombs: Vec<Program> = (0..12).map(|number| Program::new(bomb(Bomb::Operators, 60_000 + number * 60))).collect();
    scene.runtime.block_on(async {
        let answers = bombs.iter().map(|bomb| async move {
            // A submission beyond the limit is refused for now, which is an answer as well.
            let request = submission(&bomb.id, bomb.bytes.len(), "attack");
            describe(&by.send_submission(&request, &bomb.bytes).await)
        });
        let all: std::collections::BTreeSet<String> = futures::future::join_all(answers).await.into_iter().collect();
        all.into_iter().collect::<Vec<_>>().join("\n")
    })
}
