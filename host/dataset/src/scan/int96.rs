//! Unit of times that Parquet files store as INT96.
//!
//! Spark, Impala and SQL Server write such times as a day and the nanoseconds of that day, without a unit. 64-bit
//! nanoseconds end in the year 2262, and `9999-12-31`, which commonly means "no end", would wrap to 1816. Microseconds
//! hold every year that these files use. Both Parquet readers take the unit from here: DataFusion through the session's
//! setting, and the row group reader through [`schema_of`].

use arrow_schema::{Schema, TimeUnit};
use datafusion::datasource::physical_plan::parquet::Int96Coercer;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::ParquetError;
use parquet::schema::types::SchemaDescriptor;

/// Unit of the Arrow type.
const UNIT: TimeUnit = TimeUnit::Microsecond;
/// Name of the unit in DataFusion's setting.
pub(super) const SETTING: &str = "us";

/// Returns the Arrow schema of Parquet columns, from the file's Parquet types alone.
pub(super) fn schema_of(columns: &SchemaDescriptor) -> Result<Schema, ParquetError> {
    let schema = parquet_to_arrow_schema(columns, None)?;
    Ok(Int96Coercer::new(columns, &schema, &UNIT).coerce().unwrap_or(schema))
}
