//! Validation of trainers' parameters, before rows are read.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use sandbar_core::{Code, Fault};
use sandbar_dataset::UnitShape;
use sandbar_functions::{log_lines, without_each};
use sandbar_worker::{Binding, CallRequest, CallWork};

use crate::call_input::UnitInput;
use crate::error::TrainError;
use crate::execution::JobExecution;
use crate::job::{Job, TrainSpec, with_hint};

impl JobExecution {
    /// Checks the parameters of a model, by calling its trainer without groups. Otherwise each group would fail, after
    /// all rows were read.
    ///
    /// # Errors
    /// Fails if the trainer refuses its parameters; the message names the key.
    pub(crate) async fn check_model_params(
        &self,
        job: &Job,
        train: &TrainSpec,
        model: usize,
        binding: &Arc<Binding>,
    ) -> Result<(), TrainError> {
        let columns = train.features.iter().chain([&train.target]);
        let schema = Schema::new(columns.map(|c| Field::new(c, DataType::Float64, false)).collect::<Vec<_>>());
        let shape = UnitShape { groups: 0, columns: schema.fields().len(), rows: 0, test_rows: 0 };
        let refusal = async |binding: Arc<Binding>| {
            let (payload, groups) = UnitInput::reserve(&self.calls, &schema, &shape)?.lend(&[])?;
            let work = CallWork::Fit(payload, groups.into());
            let response = self.calls.call(CallRequest { binding, seed: train.seed, work }).await;
            // Other faults are reported when the groups are trained.
            let refused = response.result.err().filter(|fault| fault.code == Code::Refused);
            Ok::<_, TrainError>(refused.map(|fault| (fault, response.log)))
        };
        let Some((fault, log)) = refusal(binding.clone()).await? else { return Ok(()) };
        log_lines(&self.progress, &binding.name, &log);
        let mut key = format!("train.models[{model}].params");
        // Removing the refused parameter changes the message.
        for (name, params) in without_each(&train.models[model].params) {
            let Binding { program, function, limits, name: label, .. } = &**binding;
            let other = Binding::new(program.clone(), *function, params, *limits, label.clone())?;
            if refusal(other).await?.is_none_or(|(other, _)| other.message != fault.message) {
                key = format!("{key}.{name}");
                break;
            }
        }
        let message = format!("{}: {}", job.key_label(&key), with_hint(&fault.message));
        Err(Fault { message, ..fault }.into())
    }
}
