//! Creation of jobs in the store.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use rustix::fs::{FlockOperation, flock};
use sandbar_core::TenantId;

use crate::inspect::InspectServer;
use crate::job_record::{JobRecord, LOG_FILE};
use crate::name::JobName;
use crate::recorder::JobRecorder;
use crate::store::{JobStore, lock_file};
use crate::store_error::JobStoreError;

impl JobStore {
    /// Creates the folder of a job that runs in this process. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn create(
        &self,
        program: &str,
        arguments: &[(String, String)],
        tenant: TenantId,
    ) -> Result<JobRecorder, JobStoreError> {
        self.try_create(program, arguments, tenant)
            .map_err(|reason| JobStoreError::Io { path: self.folder.clone(), reason })
    }

    /// Like [`JobStore::create`], for a job with a given name. Replaces a job of that name that does not run on this machine.
    ///
    /// # Errors
    /// The store can't be written, or a job of that name is running.
    pub fn create_named(
        &self,
        name: &JobName,
        program: &str,
        arguments: &[(String, String)],
        tenant: TenantId,
    ) -> Result<JobRecorder, JobStoreError> {
        match self.find(name.as_str()) {
            Ok(previous) => self.remove(&previous)?,
            Err(JobStoreError::Unknown(_)) => {}
            Err(e) => return Err(e),
        }
        let created = self.create_folder(JobRecord::new(name.clone(), program, arguments, tenant));
        created.map_err(|reason| JobStoreError::Io { path: self.folder.clone(), reason })
    }

    fn try_create(&self, program: &str, arguments: &[(String, String)], tenant: TenantId) -> io::Result<JobRecorder> {
        let names = self.names()?;
        loop {
            let name = JobName::generate();
            if !names.iter().any(|other| other.short() == name.short()) {
                return self.create_folder(JobRecord::new(name, program, arguments, tenant));
            }
        }
    }

    fn create_folder(&self, record: JobRecord) -> io::Result<JobRecorder> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // The folder appears under its name only when it is complete.
        let temporary = self.folder.join(format!(".{}", record.id));
        DirBuilder::new().mode(0o700).create(&temporary)?;
        let created = lock_file(&temporary, true).and_then(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            record.write(&temporary)?;
            let log = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary.join(LOG_FILE))?;
            let server = InspectServer::bind(&temporary)?;
            let folder = self.folder.join(record.id.as_str());
            fs::rename(&temporary, &folder)?;
            Ok(JobRecorder::new(self.clone(), folder, record, lock, log, server))
        });
        if created.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        created
    }
}
