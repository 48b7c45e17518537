// RocksDB as one side of the embedding benchmark: the same rows, keys of the same distribution and
// the same memory limit.
//
//   rocksdb build FILE ROWS DIRECTORY           copies the tables of a file into a database
//   rocksdb serve DIRECTORY ROWS MEMORY_BYTES   runs lookups on command, as `bench embed-side` does
//
// It is configured as its own guide recommends for point lookups: direct reads, whole-key filters,
// a block cache of all the memory it may use, batched MultiGets. Rows that are not copied out yet
// pin their blocks beyond the cache's limit. So a lookup is split into MultiGets of a few hundred
// keys; otherwise the process would be killed for its memory.

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kDimension = 36;
constexpr size_t kRowBytes = 4 * kDimension;
constexpr int kWarmUpSamples = 100000;
constexpr int kWarmUpBatch = 500;
// Most keys of a MultiGet, which bounds pinned blocks to 2 MiB.
constexpr size_t kKeysPerGet = 512;
constexpr uint64_t kCardinalities[] = {
    1460, 583,   10131227, 2202608, 305, 24, 12517, 633,    3,       93145, 5683, 8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,  7046547, 18,     15,    286181, 105,   142572};

std::vector<uint64_t> Rows(uint64_t wanted) {
  uint64_t all = 0;
  for (uint64_t rows : kCardinalities) all += rows;
  std::vector<uint64_t> scaled;
  for (uint64_t rows : kCardinalities) {
    const auto part = static_cast<uint64_t>(static_cast<unsigned __int128>(rows) * wanted / all);
    scaled.push_back(std::max<uint64_t>(part, 3));
  }
  return scaled;
}

// Keys sort in the order of rows: a table's rows are neighbours.
void PutKey(char* key, uint16_t table, uint64_t row) {
  key[0] = static_cast<char>(table);
  for (int byte = 0; byte < 5; ++byte) key[1 + byte] = static_cast<char>(row >> (8 * (4 - byte)));
}
constexpr size_t kKeyBytes = 6;

void Check(const rocksdb::Status& status) {
  if (!status.ok()) {
    std::cerr << status.ToString() << "\n";
    std::exit(1);
  }
}

rocksdb::Options TheOptions(size_t cache_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 4096;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.whole_key_filtering = true;
  // Two shards: the index of a file of 64 MB must fit into one.
  table.block_cache = rocksdb::NewLRUCache(cache_bytes, 2);
  table.cache_index_and_filter_blocks = true;
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.format_version = 5;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // random numbers do not shrink
  options.use_direct_reads = true;
  options.optimize_filters_for_hits = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

int Build(const std::string& file, uint64_t wanted, const std::string& directory) {
  rocksdb::Options options = TheOptions(8 << 20);
  options.write_buffer_size = 64 << 20;
  rocksdb::DB* db = nullptr;
  Check(rocksdb::DB::Open(options, directory, &db));
  std::unique_ptr<rocksdb::DB> owner(db);
  std::ifstream in(file, std::ios::binary);
  uint64_t header = 0;
  in.read(reinterpret_cast<char*>(&header), 8);
  in.seekg(static_cast<std::streamoff>(8 + header));
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  char key[kKeyBytes];
  char row[kRowBytes];
  const std::vector<uint64_t> tables = Rows(wanted);
  for (size_t table = 0; table < tables.size(); ++table) {
    rocksdb::WriteBatch batch;
    for (uint64_t number = 0; number < tables[table]; ++number) {
      if (!in.read(row, kRowBytes)) {
        std::cerr << "the file ends early\n";
        return 1;
      }
      PutKey(key, static_cast<uint16_t>(table), number);
      batch.Put(rocksdb::Slice(key, kKeyBytes), rocksdb::Slice(row, kRowBytes));
      if (batch.Count() == 2000) {
        Check(db->Write(unlogged, &batch));
        batch.Clear();
      }
    }
    Check(db->Write(unlogged, &batch));
  }
  Check(db->Flush(rocksdb::FlushOptions()));
  Check(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr));
  return 0;
}

class Side {
 public:
  Side(rocksdb::DB* db, std::vector<uint64_t> rows) : db_(db), rows_(std::move(rows)) {
    options_.async_io = true;
    options_.verify_checksums = false;  // no other side verifies any
  }

  // Duration of one lookup of `samples` samples, in microseconds.
  double LookUp(size_t samples) {
    const size_t count = samples * rows_.size();
    names_.resize(count * kKeyBytes);
    keys_.resize(count);
    out_.resize(count * kDimension);
    size_t at = 0;
    for (size_t sample = 0; sample < samples; ++sample) {
      for (size_t table = 0; table < rows_.size(); ++table, ++at) {
        PutKey(&names_[at * kKeyBytes], static_cast<uint16_t>(table), Draw(rows_[table]));
        keys_[at] = rocksdb::Slice(&names_[at * kKeyBytes], kKeyBytes);
      }
    }
    const auto began = std::chrono::steady_clock::now();
    for (size_t first = 0; first < count; first += kKeysPerGet) {
      const size_t keys = std::min(kKeysPerGet, count - first);
      db_->MultiGet(options_, db_->DefaultColumnFamily(), keys, &keys_[first], values_.data(),
                    statuses_.data());
      for (size_t row = 0; row < keys; ++row) {
        Check(statuses_[row]);
        std::memcpy(&out_[(first + row) * kDimension], values_[row].data(), kRowBytes);
        values_[row].Reset();
      }
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    return took.count();
  }

 private:
  // The distribution of `model.rs`.
  uint64_t Draw(uint64_t rows) {
    const double share = std::uniform_real_distribution<double>()(random_);
    const double power = std::exp(share * std::log(static_cast<double>(rows)));
    const auto rank = static_cast<unsigned __int128>(static_cast<uint64_t>(power) - 1);
    return static_cast<uint64_t>(rank * 0x9e3779b97f4a7c15ULL % rows);
  }

  rocksdb::DB* db_;
  std::vector<uint64_t> rows_;
  rocksdb::ReadOptions options_;
  std::mt19937_64 random_{2};
  std::vector<char> names_;
  std::vector<rocksdb::Slice> keys_;
  std::vector<rocksdb::PinnableSlice> values_{kKeysPerGet};
  std::vector<rocksdb::Status> statuses_{kKeysPerGet};
  std::vector<float> out_;
};

int Serve(const std::string& directory, uint64_t wanted, size_t memory) {
  rocksdb::Options options = TheOptions(memory);
  rocksdb::DB* db = nullptr;
  Check(rocksdb::DB::OpenForReadOnly(options, directory, &db));
  std::unique_ptr<rocksdb::DB> owner(db);
  Side side(db, Rows(wanted));
  for (int done = 0; done < kWarmUpSamples; done += kWarmUpBatch) side.LookUp(kWarmUpBatch);
  std::cout << "ready" << std::endl;
  size_t batch = 0;
  size_t lookups = 0;
  while (std::cin >> batch >> lookups) {
    std::vector<double> micros;
    double sum = 0;
    for (size_t number = 0; number < lookups; ++number) {
      micros.push_back(side.LookUp(batch));
      sum += micros.back();
    }
    std::sort(micros.begin(), micros.end());
    std::cout << sum / static_cast<double>(lookups) << " " << micros[(lookups - 1) * 99 / 100]
              << std::endl;
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (count == 5 && what == "build") {
    return Build(arguments[2], std::strtoull(arguments[3], nullptr, 10), arguments[4]);
  }
  if (count == 5 && what == "serve") {
    return Serve(arguments[2], std::strtoull(arguments[3], nullptr, 10),
                 std::strtoull(arguments[4], nullptr, 10));
  }
  std::cerr << "usage: rocksdb build FILE ROWS DIRECTORY | serve DIRECTORY ROWS MEMORY_BYTES\n";
  return 2;
}
