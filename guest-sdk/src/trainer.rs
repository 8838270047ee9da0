//! Trainers: a group of rows in, a model out; later the model and rows in,
//! predictions out.
//!
//! The host has split each group: the rows to train on come first. A trainer
//! never sees the targets of the rows it is tested on.

use std::marker::PhantomData;

use arrow_buffer::ScalarBuffer;
use ndarray::{ArrayView1, ArrayView2, ShapeBuilder};
use sandbar_batch::{Header, decode_schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::guest::Kind;
use crate::dense::{self, DenseError, Grouped, GroupedFit, grouped_least_squares};
use crate::params::{Parameter, parse};
use crate::registry::{Function, Opened};
use crate::{host, input, random};

/// The features of some rows: `rows × width` values, each feature contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Features<'a> {
    /// The first feature of the first row, and all that follows it.
    values: &'a [f64],
    /// Values from one feature of a row to the next.
    stride: usize,
    rows: usize,
    width: usize,
}

impl<'a> Features<'a> {
    /// Views `values`, in which feature `j` of row `i` is at `j * stride + i`.
    ///
    /// # Panics
    /// When `values` is too short for that.
    pub fn new(values: &'a [f64], stride: usize, rows: usize, width: usize) -> Self {
        assert!(
            width == 0 || (rows <= stride && (width - 1) * stride + rows <= values.len()),
            "{} values are not {rows} rows × {width}",
            values.len()
        );
        Features { values, stride, rows, width }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Feature `j` of all rows.
    ///
    /// # Panics
    /// When there is no feature `j`.
    #[inline]
    pub fn column(&self, j: usize) -> &'a [f64] {
        assert!(j < self.width, "feature {j} of {}", self.width);
        &self.values[j * self.stride..][..self.rows]
    }

    /// All features as a matrix of shape (rows, width), in place.
    pub fn view(&self) -> ArrayView2<'a, f64> {
        let (shape, values) = ((self.rows, self.width), self.values);
        // Steps are to lie within the values even where there are none.
        let stride = if self.rows == 0 || self.width == 0 { 0 } else { self.stride };
        ArrayView2::from_shape(shape.strides((usize::from(stride > 0), stride)), values)
            .expect("checked when it was made")
    }
}

/// A group to train on.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    features: Features<'a>,
    target: &'a [f64],
    seed: u64,
}

impl<'a> Group<'a> {
    /// A group made by hand, for tests.
    ///
    /// # Panics
    /// When features and target have different numbers of rows.
    pub fn new(features: Features<'a>, target: &'a [f64], seed: u64) -> Self {
        assert_eq!(features.rows(), target.len(), "a target for each row");
        Group { features, target, seed }
    }

    /// The features of the rows to train on.
    pub fn features(&self) -> Features<'a> {
        self.features
    }

    /// The target of each row.
    pub fn target(&self) -> &'a [f64] {
        self.target
    }

    /// The target as a vector, in place.
    pub fn target_view(&self) -> ArrayView1<'a, f64> {
        ArrayView1::from(self.target)
    }

    /// A function of the job's seed and of the group, nothing else.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A random source seeded with [`Group::seed`].
    pub fn rng(&self) -> random::Xoshiro256PlusPlus {
        random::seeded(self.seed)
    }
}

#[diagnostic::on_unimplemented(
    message = "`{Self}` is no model",
    label = "a trainer returns its model or a `Result` of one",
    note = "implement `sandbar_guest::Model` for it: how it predicts, with `serde::Serialize` and `serde::Deserialize`"
)]
/// A fitted model. Its serialised form is what the host stores and hands back.
pub trait Model: Serialize + DeserializeOwned + 'static {
    /// Predicts a value for each row of `features` into `out`, which is as long.
    fn predict(&self, features: Features<'_>, out: &mut [f64]);

    /// What people read of the model, such as its coefficients: any value that
    /// serialises to JSON.
    fn params(&self) -> impl Serialize {}

    /// How many features it was trained on, if it can tell. A stored model that
    /// says so is never asked to predict from another number of them.
    fn width(&self) -> Option<usize> {
        None
    }
}

/// What [`macro@crate::trainer`] makes of a function.
pub trait Trainer: 'static {
    /// Its parameters.
    type Params: DeserializeOwned;
    /// What it fits.
    type Model: Model;

    /// Fits a group.
    ///
    /// # Errors
    /// The function's own, in words.
    fn fit(group: &Group<'_>, params: &Self::Params) -> Result<Self::Model, String>;

    /// Fits groups together, where a job says `device`.
    const TOGETHER: Option<Together<Self::Params, Self::Model>> = None;
}

/// Fits groups together: of each, in order, its model, or none if it is to be fitted by itself.
pub type Together<P, M> = fn(&Groups<'_>, &P) -> Vec<Option<M>>;

/// Groups to train on, all that are to be trained in a call.
#[derive(Debug)]
pub struct Groups<'a> {
    /// Columns of so many values each, the target last.
    values: &'a [f64],
    stride: usize,
    width: usize,
    rows: usize,
    /// Where the rows to train on begin, and where they end.
    ends: Vec<[u32; 2]>,
}

impl Groups<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Fits least squares of all of them at once, by the host.
    ///
    /// # Errors
    /// When there is no room for that, or a GPU fails.
    pub fn least_squares(&self, options: Grouped) -> Result<GroupedFit, DenseError> {
        // Columns lie at multiples of a vector's length; what is behind the last row belongs to no group.
        let mut target = vec![0.0; self.stride];
        target[..self.rows].copy_from_slice(&self.values[self.width * self.stride..][..self.rows]);
        grouped_least_squares(&self.values[..self.width * self.stride], &target, &self.ends, None, options)
    }
}

impl Function {
    /// Announces a trainer.
    pub const fn trainer<F: Trainer>(
        name: &'static str,
        about: &'static str,
        parameters: fn() -> Vec<Parameter>,
    ) -> Function {
        let (kind, arguments, returns) = (Kind::Trainer, Vec::new as _, Vec::new as _);
        Function { name, kind, about, arguments, returns, parameters, open: open::<F> }
    }
}

fn open<F: Trainer>(params: &str) -> Result<Box<dyn Opened>, String> {
    Ok(Box::new(OpenedTrainer::<F> { params: parse(params)?, function: PhantomData }))
}

struct OpenedTrainer<F: Trainer> {
    params: F::Params,
    function: PhantomData<F>,
}

impl<F: Trainer> Opened for OpenedTrainer<F> {
    fn fit(&mut self, header: &[u8]) -> Result<(), String> {
        let matrix = Matrix::load(header)?;
        let mut predictions = Vec::new();
        let (mut stored, mut params) = (Vec::new(), Vec::new());
        let models = match F::TOGETHER {
            Some(together) if dense::job_device().is_some() => together(&matrix.groups(), &self.params),
            _ => Vec::new(),
        };
        let mut models = models.into_iter();
        while let Some(at) = host::next_group() {
            let (first, train, test) = (at.first_row as usize, at.train_rows as usize, at.test_rows as usize);
            let target = &matrix.column(matrix.columns - 1)[first..first + train];
            let group = Group { features: matrix.features(first, train, 1), target, seed: at.seed };
            let model = match models.next().flatten().map_or_else(|| F::fit(&group, &self.params), Ok) {
                Ok(model) => model,
                Err(why) => {
                    host::failed(&why);
                    continue;
                }
            };
            predictions.clear();
            predictions.resize(test, 0.0);
            model.predict(matrix.features(first + train, test, 1), &mut predictions);
            match serialise(&model, &mut stored, &mut params) {
                Ok(params) => host::fitted(&stored, params, bytes(&predictions)),
                Err(why) => host::failed(&why),
            }
        }
        Ok(())
    }

    fn predict(&mut self, header: &[u8]) -> Result<(), String> {
        let matrix = Matrix::load(header)?;
        let mut predictions = Vec::new();
        while let Some(at) = host::next_group() {
            let model: F::Model = match stored(&host::model(), matrix.columns) {
                Ok(model) => model,
                Err(why) => {
                    host::failed(&why);
                    continue;
                }
            };
            predictions.clear();
            predictions.resize(at.test_rows as usize, 0.0);
            model.predict(matrix.features(at.first_row as usize, at.test_rows as usize, 0), &mut predictions);
            host::predicted(bytes(&predictions));
        }
        Ok(())
    }
}

/// Reads a model back, which must be of `width` features where it says of how many.
fn stored<M: Model>(bytes: &[u8], width: usize) -> Result<M, String> {
    let model: M =
        postcard::from_bytes(bytes).map_err(|e| format!("the stored model is not one of this function's: {e}"))?;
    match model.width() {
        Some(trained) if trained != width => {
            Err(format!("the stored model takes {trained} features, the input has {width}"))
        }
        _ => Ok(model),
    }
}

/// Predictions as the contract wants them; wasm32 is little-endian.
fn bytes(predictions: &[f64]) -> &[u8] {
    // SAFETY: an f64 has no padding.
    unsafe { std::slice::from_raw_parts(predictions.as_ptr().cast(), size_of_val(predictions)) }
}

fn serialise<'a, M: Model>(model: &M, stored: &mut Vec<u8>, params: &'a mut Vec<u8>) -> Result<&'a str, String> {
    stored.clear();
    let taken = std::mem::take(stored);
    *stored = postcard::to_extend(model, taken).map_err(|e| format!("the model can't be serialised: {e}"))?;
    params.clear();
    serde_json::to_writer(&mut *params, &model.params()).map_err(|e| format!("the parameters are not JSON: {e}"))?;
    // SAFETY: serde_json writes UTF-8.
    Ok(unsafe { std::str::from_utf8_unchecked(params) })
}

/// The input of a training call: columns of f64, one after another at one stride.
struct Matrix {
    values: ScalarBuffer<f64>,
    stride: usize,
    columns: usize,
    rows: usize,
}

impl Matrix {
    fn load(header: &[u8]) -> Result<Matrix, String> {
        let header = Header::parse(header).map_err(|e| e.to_string())?;
        let columns = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?.fields().len();
        let (first, len) = if columns > 0 { header.buffer(1) } else { (0, 0) };
        let step = if columns > 1 { header.buffer(3).0 - first } else { len };
        let body = input::body(header.body_bytes());
        let values = ScalarBuffer::new(body, first / 8, (header.body_bytes() - first) / 8);
        Ok(Matrix { values, stride: step / 8, columns, rows: header.rows() })
    }

    fn column(&self, j: usize) -> &[f64] {
        &self.values[j * self.stride..][..self.rows]
    }

    /// The groups that are ahead.
    fn groups(&self) -> Groups<'_> {
        let ends = host::groups_ahead().into_iter().map(|at| [at.first_row, at.first_row + at.train_rows]).collect();
        Groups { values: &self.values, stride: self.stride, width: self.columns - 1, rows: self.rows, ends }
    }

    /// All columns but the last `without`, for some rows.
    fn features(&self, first: usize, rows: usize, without: usize) -> Features<'_> {
        Features::new(&self.values[first..], self.stride, rows, self.columns - without)
    }
}
