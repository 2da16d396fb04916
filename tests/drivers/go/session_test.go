// Package drivers tests Forebay through the Go driver with its default settings.
package drivers

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestSession(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { session(t, startForebay(t, "--memory")) })
	t.Run("upstream", func(t *testing.T) { session(t, startForebay(t, "--memory", "--upstream", startFerretDB(t))) })
}

// In a replica set of one member, the driver numbers its writes and retries a write whose reply was lost.
func TestReplicaSet(t *testing.T) {
	uri := startForebay(t, "--memory", "--mongodb-replica-set", "rs0", "--mongodb-test-commands",
		"--documents-change-history-bytes-max", "64MiB")
	sent := map[string]int{}
	client := connect(t, uri+"/?replicaSet=rs0", "", sent)
	things := client.Database("go").Collection("things")
	ctx := t.Context()
	stream, err := things.Watch(ctx, mongo.Pipeline{})
	check(t, err)
	_, err = things.InsertOne(ctx, bson.D{{"_id", 1}, {"n", 0}})
	check(t, err)
	loseReply := bson.D{{"configureFailPoint", "onPrimaryTransactionalWrite"}, {"mode", bson.D{{"times", 1}}}}
	check(t, client.Database("admin").RunCommand(ctx, loseReply).Err())
	sent["update"] = 0
	updated, err := things.UpdateOne(ctx, bson.D{{"_id", 1}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
	check(t, err)
	same(t, []int64{updated.ModifiedCount, int64(sent["update"])}, []int64{1, 2})
	for _, kind := range []string{"insert", "update"} {
		same(t, stream.Next(ctx), true)
		same(t, stream.Current.Lookup("operationType").StringValue(), kind)
	}
	var found bson.D
	check(t, things.FindOne(ctx, bson.D{}).Decode(&found))
	same(t, found, bson.D{{"_id", int32(1)}, {"n", int32(1)}})
	check(t, stream.Close(ctx))
	check(t, client.Disconnect(ctx))
}

func session(t *testing.T, uri string) {
	for _, compressor := range []string{"", "zlib", "snappy", "zstd"} {
		t.Run("compressor "+compressor, func(t *testing.T) {
			sent := map[string]int{}
			client := connect(t, uri, compressor, sent)
			database := client.Database("go" + compressor)
			crud(t, database.Collection("crud"))
			cursor(t, database.Collection("cursor"), sent)
			aggregation(t, database.Collection("aggregation"))
			indexes(t, database.Collection("indexes"))
			bulk(t, database.Collection("bulk"))
			failures(t, database)
			sessions(t, client, database.Collection("sessions"))
			check(t, client.Disconnect(t.Context()))
			same(t, sent["endSessions"], 1)
		})
	}
}

// connect returns a client, and counts the commands that the driver sends in sent.
func connect(t *testing.T, uri, compressor string, sent map[string]int) *mongo.Client {
	settings := options.Client().ApplyURI(uri).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, started *event.CommandStartedEvent) { sent[started.CommandName]++ },
	})
	if compressor != "" {
		settings.SetCompressors([]string{compressor})
	}
	client, err := mongo.Connect(settings)
	check(t, err)
	return client
}

func crud(t *testing.T, things *mongo.Collection) {
	ctx := t.Context()
	inserted, err := things.InsertMany(ctx, []any{
		bson.D{{"_id", 1}, {"n", 1}, {"text", "héllo"}}, bson.D{{"_id", 2}, {"n", 2}}, bson.D{{"_id", 3}, {"n", 3}},
	})
	check(t, err)
	same(t, len(inserted.InsertedIDs), 3)
	updated, err := things.UpdateMany(ctx, bson.D{{"n", bson.D{{"$gt", 1}}}}, bson.D{{"$inc", bson.D{{"n", 10}}}})
	check(t, err)
	same(t, []int64{updated.MatchedCount, updated.ModifiedCount}, []int64{2, 2})
	deleted, err := things.DeleteOne(ctx, bson.D{{"_id", 2}})
	check(t, err)
	same(t, deleted.DeletedCount, 1)
	upserted, err := things.ReplaceOne(ctx, bson.D{{"_id", 9}}, bson.D{{"n", 9}}, options.Replace().SetUpsert(true))
	check(t, err)
	same(t, upserted.UpsertedID, any(int32(9)))
	var before bson.D
	check(t, things.FindOneAndUpdate(ctx, bson.D{{"_id", 3}}, bson.D{{"$set", bson.D{{"n", 0}}}}).Decode(&before))
	same(t, before, bson.D{{"_id", int32(3)}, {"n", int32(13)}})
	found, err := things.Find(ctx, bson.D{{"text", bson.D{{"$regex", "^h.*o$"}}}})
	check(t, err)
	var texts []bson.D
	check(t, found.All(ctx, &texts))
	same(t, texts, []bson.D{{{"_id", int32(1)}, {"n", int32(1)}, {"text", "héllo"}}})
}

func cursor(t *testing.T, things *mongo.Collection, sent map[string]int) {
	ctx := t.Context()
	documents := make([]any, 1_234)
	for number := range documents {
		documents[number] = bson.D{{"_id", number}, {"text", fmt.Sprint("text ", number)}}
	}
	_, err := things.InsertMany(ctx, documents)
	check(t, err)
	sent["getMore"] = 0
	found, err := things.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}).SetBatchSize(100))
	check(t, err)
	for number := 0; found.Next(ctx); number++ {
		same(t, found.Current.Lookup("_id").AsInt64(), int64(number))
	}
	check(t, found.Err())
	same(t, sent["getMore"], 12)
	count, err := things.CountDocuments(ctx, bson.D{{"text", bson.D{{"$regex", "99$"}}}})
	check(t, err)
	same(t, count, 12)
}

func aggregation(t *testing.T, things *mongo.Collection) {
	ctx := t.Context()
	_, err := things.InsertMany(ctx, []any{
		bson.D{{"k", "a"}, {"v", 1}}, bson.D{{"k", "b"}, {"v", 2}}, bson.D{{"k", "a"}, {"v", 3}},
	})
	check(t, err)
	found, err := things.Aggregate(ctx, mongo.Pipeline{
		{{"$group", bson.D{{"_id", "$k"}, {"sum", bson.D{{"$sum", "$v"}}}}}}, {{"$sort", bson.D{{"_id", 1}}}},
	})
	check(t, err)
	var groups []bson.D
	check(t, found.All(ctx, &groups))
	same(t, groups, []bson.D{{{"_id", "a"}, {"sum", int32(4)}}, {{"_id", "b"}, {"sum", int32(2)}}})
	var kinds []string
	check(t, things.Distinct(ctx, "k", bson.D{}).Decode(&kinds))
	same(t, kinds, []string{"a", "b"})
}

func indexes(t *testing.T, things *mongo.Collection) {
	ctx := t.Context()
	unique := mongo.IndexModel{Keys: bson.D{{"name", 1}}, Options: options.Index().SetUnique(true)}
	name, err := things.Indexes().CreateOne(ctx, unique)
	check(t, err)
	same(t, name, "name_1")
	_, err = things.InsertMany(ctx, []any{bson.D{{"name", "x"}}, bson.D{{"name", "x"}}})
	same(t, mongo.IsDuplicateKeyError(err), true)
	specifications, err := things.Indexes().ListSpecifications(ctx)
	check(t, err)
	same(t, []string{specifications[0].Name, specifications[1].Name}, []string{"_id_", "name_1"})
	check(t, things.Indexes().DropOne(ctx, "name_1"))
}

func bulk(t *testing.T, things *mongo.Collection) {
	result, err := things.BulkWrite(t.Context(), []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 1}}),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{"_id", 2}}).SetUpdate(bson.D{{"$set", bson.D{{"n", 2}}}}).SetUpsert(true),
		mongo.NewDeleteOneModel().SetFilter(bson.D{{"_id", 1}}),
		mongo.NewReplaceOneModel().SetFilter(bson.D{{"_id", 2}}).SetReplacement(bson.D{{"n", 3}}),
	})
	check(t, err)
	same(t, []int64{result.InsertedCount, result.UpsertedCount, result.DeletedCount, result.MatchedCount}, []int64{1, 1, 1, 1})
	same(t, result.UpsertedIDs, map[int64]any{1: int32(2)})
}

func failures(t *testing.T, database *mongo.Database) {
	ctx := t.Context()
	same(t, code(database.RunCommand(ctx, bson.D{{"florble", 1}}).Err()), 59)
	_, err := database.Collection("crud").InsertOne(ctx, bson.D{{"_id", 1}})
	same(t, mongo.IsDuplicateKeyError(err), true)
	_, err = database.Collection("crud").UpdateOne(ctx, bson.D{}, bson.D{{"$florble", bson.D{{"a", 1}}}})
	same(t, code(err), 9)
	same(t, database.Collection("crud").FindOne(ctx, bson.D{{"_id", "nobody"}}).Err(), mongo.ErrNoDocuments)
}

// code returns the error code of a command or of a write.
func code(err error) int {
	if failed, is := err.(mongo.ServerError); is {
		return failed.ErrorCodes()[0]
	}
	return 0
}

func sessions(t *testing.T, client *mongo.Client, things *mongo.Collection) {
	check(t, client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := things.InsertOne(ctx, bson.D{{"_id", 1}})
		check(t, err)
		return things.FindOne(ctx, bson.D{{"_id", 1}}).Err()
	}))
}

func same[T any](t *testing.T, found, expected T) {
	t.Helper()
	if !reflect.DeepEqual(found, expected) {
		t.Fatalf("found %v, expected %v", found, expected)
	}
}
