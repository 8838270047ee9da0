//! The unit of times that Parquet files store as INT96.
//!
//! Spark, Impala and SQL Server write such times: a day and the nanoseconds of that day, with no unit of their own. In
//! nanoseconds 64 bits end in the year 2262, and `9999-12-31`, which stands for "no end" there, would be 1816.
//! Microseconds hold every year that such files can. Both readers of Parquet take the unit from here: the engine, by
//! the session's setting, and the reader of row groups, by [`schema_of`].

use arrow_schema::{Schema, TimeUnit};
use datafusion::datasource::physical_plan::parquet::Int96Coercer;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::ParquetError;
use parquet::schema::types::SchemaDescriptor;

/// The unit.
const UNIT: TimeUnit = TimeUnit::Microsecond;
/// The unit as the engine's setting names it.
pub(super) const SETTING: &str = "us";

/// The Arrow schema of Parquet columns, from the file's own types alone.
pub(super) fn schema_of(columns: &SchemaDescriptor) -> Result<Schema, ParquetError> {
    let schema = parquet_to_arrow_schema(columns, None)?;
    Ok(Int96Coercer::new(columns, &schema, &UNIT).coerce().unwrap_or(schema))
}
