//! One client that makes and deletes volumes until its connection breaks.

use std::collections::BTreeSet;

use lode_api::v1::volume_service_client::VolumeServiceClient;
use lode_api::v1::{CreateVolumeRequest, DeleteVolumeRequest, ListVolumesRequest};
use tonic::transport::Channel;

use crate::Daemon;

const PREFIX: &str = "churned-";
/// How many volumes may be there at once.
const VOLUMES_MAX: usize = 4;
const VOLUME_BYTES: u64 = 1 << 20;

/// What it knows of its volumes.
#[derive(Debug, Default)]
pub(super) struct Churn {
    next: u64,
    /// Made, and not asked to be deleted.
    present: BTreeSet<String>,
    /// The one whose creation or deletion was not answered.
    unclear: Option<String>,
    acknowledged: u64,
}

impl Churn {
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Compares the volumes that are there with those that must be.
    pub(super) async fn judge(&mut self, daemon: &Daemon) -> Vec<String> {
        let listed = match daemon
            .volumes()
            .await
            .list_volumes(ListVolumesRequest::default())
            .await
        {
            Ok(answer) => answer.into_inner().volumes,
            Err(status) => return vec![format!("the volumes cannot be listed: {status}")],
        };
        let found: BTreeSet<String> = listed
            .into_iter()
            .map(|volume| volume.name)
            .filter(|name| name.starts_with(PREFIX))
            .collect();
        let unclear = self.unclear.take();
        let losses = self
            .present
            .symmetric_difference(&found)
            .filter(|name| Some(*name) != unclear.as_ref())
            .map(|name| match found.contains(name) {
                true => format!("volume {name} is back although its deletion was acknowledged"),
                false => format!("volume {name} is gone although its creation was acknowledged"),
            })
            .collect();
        self.present = found;
        losses
    }

    /// Makes and deletes volumes until the connection breaks.
    pub(super) async fn until_cut(mut self, mut client: VolumeServiceClient<Channel>) -> Self {
        loop {
            let outcome = if self.present.len() < VOLUMES_MAX {
                self.create(&mut client).await
            } else {
                self.delete(&mut client).await
            };
            match outcome {
                Ok(()) => self.acknowledged += 1,
                Err(_broken) => return self,
            }
        }
    }

    async fn create(
        &mut self,
        client: &mut VolumeServiceClient<Channel>,
    ) -> Result<(), tonic::Status> {
        let name = format!("{PREFIX}{}", self.next);
        self.next += 1;
        self.unclear = Some(name.clone());
        client
            .create_volume(CreateVolumeRequest {
                name: name.clone(),
                size_bytes: VOLUME_BYTES,
                request_id: format!("create-{name}"),
                ..CreateVolumeRequest::default()
            })
            .await?;
        self.unclear = None;
        self.present.insert(name);
        Ok(())
    }

    async fn delete(
        &mut self,
        client: &mut VolumeServiceClient<Channel>,
    ) -> Result<(), tonic::Status> {
        let name = self.present.pop_first().expect("there are volumes");
        self.unclear = Some(name.clone());
        client
            .delete_volume(DeleteVolumeRequest {
                name: name.clone(),
                request_id: format!("delete-{name}"),
                ..DeleteVolumeRequest::default()
            })
            .await?;
        self.unclear = None;
        Ok(())
    }
}
