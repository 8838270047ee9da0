//! One sandbox, and the calls of the contract.

use std::collections::HashSet;

use sandbar_core::{Code, Fault, Function, FunctionKind, Limits, Parameter, TaskKind};
use wasmtime::Store;
use wasmtime::component::{ComponentNamedList, ComponentType, Lift, Lower, TypedFunc};

use crate::contract::GUEST;
use crate::fault::fault;
use crate::program::Program;
use crate::services::{NoServices, Services};
use crate::state::SandboxState;

/// Maximum number of functions of a component.
const FUNCTIONS_MAX: usize = 1024;
/// Maximum number of parameters of a function.
const PARAMETERS_MAX: usize = 1024;

/// A sandbox. Dropping it resets its memory for the next.
pub struct Instance<'p> {
    program: &'p Program,
    store: Store<SandboxState>,
    instance: wasmtime::component::Instance,
}

#[derive(ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "only lifted from a guest")]
enum WitKind {
    #[component(name = "scalar")]
    Scalar,
    #[component(name = "batch")]
    Batch,
    #[component(name = "trainer")]
    Trainer,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct WitFunction {
    name: String,
    kind: WitKind,
    arguments: Vec<u8>,
    returns: Vec<u8>,
    about: String,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct WitParameter {
    name: String,
    #[component(name = "type")]
    type_name: String,
    default: String,
    required: bool,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct WitArgument {
    name: String,
    #[component(name = "type")]
    type_name: String,
}

#[derive(ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "only lifted from a guest")]
enum WitTaskKind {
    #[component(name = "task")]
    Task,
    #[component(name = "make")]
    Make,
    #[component(name = "method")]
    Method,
    #[component(name = "shared")]
    Shared,
    #[component(name = "checkpoint")]
    Checkpoint,
    #[component(name = "restore")]
    Restore,
    #[component(name = "generator")]
    Generator,
}

impl From<WitTaskKind> for TaskKind {
    fn from(kind: WitTaskKind) -> TaskKind {
        match kind {
            WitTaskKind::Task => TaskKind::Task,
            WitTaskKind::Make => TaskKind::Make,
            WitTaskKind::Method => TaskKind::Method,
            WitTaskKind::Shared => TaskKind::Shared,
            WitTaskKind::Checkpoint => TaskKind::Checkpoint,
            WitTaskKind::Restore => TaskKind::Restore,
            WitTaskKind::Generator => TaskKind::Generator,
        }
    }
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct WitTask {
    name: String,
    kind: WitTaskKind,
    arguments: Vec<WitArgument>,
    returns: String,
    count: u32,
    about: String,
}

type GuestResult = (Result<(), String>,);

impl Program {
    /// Creates a fresh sandbox under `limits`. Its randomness is a function of `seed`.
    pub fn instantiate(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Result<Instance<'_>, Fault> {
        Instance::new(self, self.store(services, limits, seed))
    }
}

impl<'p> Instance<'p> {
    fn new(program: &'p Program, mut store: Store<SandboxState>) -> Result<Self, Fault> {
        match program.pre.instantiate(&mut store) {
            Ok(instance) => Ok(Instance { program, store, instance }),
            Err(error) => Err(fault(store.data_mut(), error)),
        }
    }

    /// Returns the descriptions of the component's functions and tasks.
    pub fn describe(&mut self) -> Result<Vec<Function>, Fault> {
        let (functions,) = self.call::<(), (Vec<WitFunction>,)>(|p| p.exports.describe, ())?;
        if functions.len() > FUNCTIONS_MAX {
            return Err(Fault::new(
                Code::BadOutput,
                format!("it describes {} functions, the limit is {FUNCTIONS_MAX}", functions.len()),
            ));
        }
        let mut names = HashSet::new();
        if let Some(twice) = functions.iter().find(|f| !names.insert(f.name.as_str())) {
            let message = format!("it has two functions called `{}`; rename one", twice.name);
            return Err(Fault::new(Code::Export, message));
        }
        let mut parameters = self.describe_parameters()?.into_iter();
        let tasks = self.describe_tasks()?;
        let kind = |kind| match kind {
            WitKind::Scalar => FunctionKind::Scalar,
            WitKind::Batch => FunctionKind::Batch,
            WitKind::Trainer => FunctionKind::Trainer,
        };
        Ok(functions
            .into_iter()
            .map(|f| Function {
                name: f.name,
                kind: kind(f.kind),
                arguments: f.arguments,
                returns: f.returns,
                parameters: parameters.next().unwrap_or_default(),
                about: f.about,
            })
            .chain(tasks)
            .collect())
    }

    /// Returns the parameters of each function, if the component describes them.
    fn describe_parameters(&mut self) -> Result<Vec<Vec<Parameter>>, Fault> {
        let Some(describe) = self.program.exports.parameters else { return Ok(Vec::new()) };
        let (all,) = self.call::<(), (Vec<Vec<WitParameter>>,)>(|_| describe, ())?;
        if let Some(many) = all.iter().map(Vec::len).find(|count| *count > PARAMETERS_MAX) {
            let message = format!("it describes {many} parameters of a function, the limit is {PARAMETERS_MAX}");
            return Err(Fault::new(Code::BadOutput, message));
        }
        let parameter =
            |WitParameter { name, type_name, default, required }| Parameter { name, type_name, default, required };
        Ok(all.into_iter().map(|parameters| parameters.into_iter().map(parameter).collect()).collect())
    }

    /// Returns the descriptions of the component's tasks, if it has any.
    fn describe_tasks(&mut self) -> Result<Vec<Function>, Fault> {
        let Some(exports) = &self.program.exports.tasks else { return Ok(Vec::new()) };
        let describe = exports.describe;
        let (tasks,) = self.call::<(), (Vec<WitTask>,)>(|_| describe, ())?;
        if tasks.len() > FUNCTIONS_MAX {
            let message = format!("it describes {} tasks, the limit is {FUNCTIONS_MAX}", tasks.len());
            return Err(Fault::new(Code::BadOutput, message));
        }
        let encoded = |task: WitTask| {
            let arguments: Vec<_> = task.arguments.iter().map(|a| (&a.name, &a.type_name)).collect();
            let arguments = postcard::to_stdvec(&arguments)?;
            let returns = postcard::to_stdvec(&(task.returns, task.count, TaskKind::from(task.kind)))?;
            let (name, about, parameters) = (task.name, task.about, Vec::new());
            Ok(Function { name, kind: FunctionKind::Task, arguments, returns, parameters, about })
        };
        let malformed = |e: postcard::Error| Fault::new(Code::BadOutput, e.to_string());
        tasks.into_iter().map(|task| encoded(task).map_err(malformed)).collect()
    }

    /// Selects function `index`, its parameters (a JSON object) and its seed.
    pub fn open(&mut self, index: u32, params: &str, seed: u64) -> Result<(), Fault> {
        self.outcome(|p| p.exports.open, (index, params, seed))
    }

    /// Runs a scalar or batch function over the input that `header` describes.
    pub fn process(&mut self, header: &[u8]) -> Result<(), Fault> {
        self.outcome(|p| p.exports.process, (header,))
    }

    /// Fits the groups of the input.
    pub fn fit(&mut self, header: &[u8]) -> Result<(), Fault> {
        self.outcome(|p| p.exports.fit, (header,))
    }

    /// Predicts the groups of the input with their stored models.
    pub fn predict(&mut self, header: &[u8]) -> Result<(), Fault> {
        self.outcome(|p| p.exports.predict, (header,))
    }

    /// Returns the services, for the next call.
    pub fn services(&mut self) -> &mut dyn Services {
        self.store.data_mut().services.as_mut()
    }

    /// Returns the current bytes of linear memory.
    pub fn memory_bytes(&self) -> u64 {
        self.store.data().limiter.memory_bytes
    }

    /// Ends the sandbox, and returns its services.
    pub fn into_services(mut self) -> Box<dyn Services> {
        self.store.data_mut().flush_output();
        std::mem::replace(&mut self.store.data_mut().services, Box::new(NoServices))
    }

    fn outcome<P>(
        &mut self,
        export: impl Fn(&Program) -> wasmtime::component::ComponentExportIndex,
        params: P,
    ) -> Result<(), Fault>
    where
        P: ComponentNamedList + Lower,
    {
        let (outcome,) = self.call::<P, GuestResult>(export, params)?;
        outcome.map_err(|message| Fault::new(Code::Refused, message))
    }

    fn call<P, R>(
        &mut self,
        export: impl Fn(&Program) -> wasmtime::component::ComponentExportIndex,
        params: P,
    ) -> Result<R, Fault>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift + 'static,
    {
        let function: Result<TypedFunc<P, R>, _> = self.instance.get_typed_func(&mut self.store, export(self.program));
        let function = function.map_err(|error| {
            Fault::new(Code::Contract, format!("a function of its `{GUEST}` has another type: {error:#}"))
        })?;
        self.store.data_mut().limiter.begin();
        function.call(&mut self.store, params).map_err(|error| {
            self.store.data_mut().flush_output();
            fault(self.store.data_mut(), error)
        })
    }
}
