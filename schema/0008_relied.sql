-- What a new epoch builds on: a peer that was put back to an earlier state behind it is noticed by the first parcel already.

ALTER TABLE peers ADD COLUMN relied_epoch TEXT NOT NULL DEFAULT '';
ALTER TABLE peers ADD COLUMN relied_parcel INTEGER NOT NULL DEFAULT 0;

ALTER TABLE streams ADD COLUMN relied_epoch TEXT NOT NULL DEFAULT '';
ALTER TABLE streams ADD COLUMN relied_number INTEGER NOT NULL DEFAULT 0;
