//! An object store behind the port.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tidegate_core::{Code, Failure, FailureClass};

use super::storage::{CheckpointFile, CheckpointStorage, StorageError, StorageFuture};

/// Bytes of one part of an upload; stores take no smaller ones but the last.
const PART: usize = 8 * 1024 * 1024;

/// A store, and the beginning of the names in it.
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn unusable(name: &str, error: Error) -> StorageError {
    if matches!(error, Error::NotFound { .. }) {
        return StorageError::Missing(name.to_owned());
    }
    if matches!(error, Error::AlreadyExists { .. }) {
        return StorageError::Exists(name.to_owned());
    }
    StorageError::Unusable {
        name: name.to_owned(),
        source: Box::new(error),
    }
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, prefix: &str, shown: String) -> Self {
        Self {
            store,
            prefix: Path::from(prefix),
            shown,
        }
    }

    /// A bucket of a store that speaks S3. The environment says who we are.
    ///
    /// # Errors
    /// The environment or the address cannot be used.
    pub(super) fn s3(bucket: &str, prefix: &str, endpoint: Option<&str>) -> Result<Self, Failure> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may have been faster, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        if let Some(endpoint) = endpoint {
            builder = builder
                .with_endpoint(endpoint)
                .with_allow_http(endpoint.starts_with("http://"));
        }
        let store = builder.build().map_err(|error| {
            let code = Code::from_static("stage.checkpoint.unset");
            Failure::new(FailureClass::System, code, error.to_string())
        })?;
        Ok(Self::new(
            Arc::new(store),
            prefix,
            format!("`s3://{bucket}/{prefix}`"),
        ))
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }
}

impl CheckpointStorage for Objects {
    fn list(&self) -> StorageFuture<'_, Vec<String>> {
        Box::pin(async move {
            let listed = self.store.list_with_delimiter(Some(&self.prefix)).await;
            let listed = listed.map_err(|error| unusable("", error))?;
            let names = listed.objects.iter().filter_map(|object| {
                let name = object.location.filename()?;
                Some(name.to_owned())
            });
            Ok(names.collect())
        })
    }

    fn create<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Box<dyn CheckpointFile>> {
        Box::pin(async move {
            Ok(Box::new(ObjectFile {
                store: Arc::clone(&self.store),
                path: self.path(name),
                name: name.to_owned(),
                upload: None,
                waiting: Vec::new(),
                size: 0,
            }) as Box<dyn CheckpointFile>)
        })
    }

    fn read<'a>(&'a self, name: &'a str, from: u64, length: u64) -> StorageFuture<'a, Bytes> {
        Box::pin(async move {
            let path = self.path(name);
            let size = self.store.head(&path).await;
            let size = size.map_err(|error| unusable(name, error))?.size;
            let end = size.min(from.saturating_add(length));
            if from >= end {
                return Ok(Bytes::new());
            }
            let read = self.store.get_range(&path, from..end).await;
            read.map_err(|error| unusable(name, error))
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            match self.store.delete(&self.path(name)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(unusable(name, error)),
            }
        })
    }
}

/// An object that is being written: at once where it is short, otherwise in parts.
struct ObjectFile {
    store: Arc<dyn ObjectStore>,
    path: Path,
    name: String,
    upload: Option<Box<dyn MultipartUpload>>,
    waiting: Vec<Bytes>,
    size: usize,
}

impl ObjectFile {
    async fn send(&mut self) -> Result<(), Error> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(self.store.put_multipart(&self.path).await?),
        };
        self.size = 0;
        let payload = PutPayload::from_iter(std::mem::take(&mut self.waiting));
        upload.put_part(payload).await
    }

    async fn end(&mut self) -> Result<(), Error> {
        if self.upload.is_none() {
            let payload = PutPayload::from_iter(std::mem::take(&mut self.waiting));
            let options = PutOptions::from(PutMode::Create);
            self.store.put_opts(&self.path, payload, options).await?;
            return Ok(());
        }
        if self.size > 0 {
            self.send().await?;
        }
        if let Some(upload) = &mut self.upload {
            upload.complete().await?;
        }
        Ok(())
    }
}

impl CheckpointFile for ObjectFile {
    fn append(&mut self, bytes: Bytes) -> StorageFuture<'_, ()> {
        Box::pin(async move {
            self.size += bytes.len();
            self.waiting.push(bytes);
            match self.size >= PART {
                true => self
                    .send()
                    .await
                    .map_err(|error| unusable(&self.name, error)),
                false => Ok(()),
            }
        })
    }

    fn finish(mut self: Box<Self>) -> StorageFuture<'static, ()> {
        Box::pin(async move {
            let ended = self.end().await;
            ended.map_err(|error| unusable(&self.name, error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::storage::tests::keeps_its_promises;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn an_object_store_keeps_the_promises_of_the_port() {
        let store = Arc::new(InMemory::new());
        keeps_its_promises(&Objects::new(store, "some/process", "memory".to_owned())).await;
    }
}
