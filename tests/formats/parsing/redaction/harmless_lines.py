"""Command lines, names and texts that hold no secret, however much some look like one."""

HARMLESS = r"""
python serve.py --batch 4
python train.py --max-tokens 128 --tokenizer meta-llama/Llama-3.1-8B
python bench.py --max-tokens=128 --num-tokens=4096 --min_tokens 1
python run.py --tokenizer_path /models/tokenizer.json --tokenizer-mode auto
python run.py --pad-token "<pad>" --eos-token </s> --bos_token=<s>
python run.py --stop-token-ids 128001 128009 --token-count 4
python run.py --image-token-index=32000 --special-token-policy=raise
python app.py --keyboard us --key-frame 4 --keypoint-model /m/k.onnx
python app.py --monkey --turkey 4 --hotkeys ctrl+c
python app.py --passes 3 --num-passes=4 --pass-pipeline=canonicalize,cse
python app.py --compass north --bypass --passthrough=true
python app.py --secret-name my-secret --secret-file /run/secrets/db
python app.py --token-file ~/.cache/huggingface/token --password-file=/run/secrets/pw
python app.py --api-key-env OPENAI_API_KEY --key-type ed25519
python app.py --password-stdin --no-password
python app.py --token $HF_TOKEN --api-key ${API_KEY}
python app.py --token=%TOKEN% --password=<password>
python app.py --api-key YOUR_API_KEY_FILE.json
python app.py --signature-def serving_default --design v2 --sigma 0.5
python app.py --author alice --authors bob --authority root
python app.py -p 8080 -P 4 -p 127.0.0.1:8080:80
mkdir -p /tmp/x/y
docker run -p 8080:80 -u 1000:1000 rocm/pytorch:rocm6.4_ubuntu22.04_py3.12
docker run --user 1000:1000 -v /data:/data image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
docker pull docker://ubuntu:22.04@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
git checkout 3f786850e387550fdab836ed7e6dc881de23001b
git clone ssh://git@github.com/ROCm/rocm-systems.git
git clone git@github.com:ROCm/aiter.git --depth 1
git diff 3f78685..89e6c98 -- src/token.py
git log -p HEAD~3
curl -o out.bin https://host.example:8443/path/file.bin?part=4
wget -r -l 2 -p http://host/1.html
ssh -p 2222 user@host
scp -P 2222 file user@host:/tmp
grep -rn "token" src --include=*.py
grep -P "\d+" log.txt
sed -n 1,20p secrets_test.py
pytest -p no:cacheprovider -k "not token" tests/test_auth.py
python -m pytest tests/test_tokens.py::test_password_field
cmake -DGPU_TARGETS=gfx942 -DCMAKE_BUILD_TYPE=Release ..
ninja -j 16 -C build
hipcc --offload-arch=gfx90a -O3 -o kernel kernel.hip
hipcc -save-temps -Rpass-analysis=kernel-resource-usage x.hip
clang -Rpass=inline -mllvm -pass-remarks=inline -c a.c
rocprofv3 --kernel-trace --stats -d /tmp/out -- python app.py
rocprofv3 --pmc SQ_WAVES GRBM_GUI_ACTIVE -i counters.txt -- ./a.out
rocprof-compute profile -n bench --path workloads -- ./bench -m 8192
/opt/conda/envs/py_3.10/bin/python3.10 -u /workspace/aorta/train.py --override training.max_steps=50
torchrun --nproc_per_node 8 --master_port 29500 train.py
python -m vllm.entrypoints.openai.api_server --model /models/Mixtral-8x7B-Instruct-v0.1 --max-num-batched-tokens 8192
python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --chunked-prefill-size 131072
lm_eval --model hf --model_args pretrained=gpt2,dtype=bfloat16 --tasks hellaswag
trtexec --onnx=model.onnx --fp16 --shapes=input:1x3x224x224
migraphx-driver perf model.onnx --fp16 --exhaustive-tune
numactl --cpunodebind=0 --membind=0 ./bench
taskset -c 0-3 ./bench --seed 1234567890
mpirun -np 4 -x HSA_ENABLE_SDMA=0 ./app
srun --ntasks=8 --gpus-per-task=1 python t.py --run-id 20251209_070939
env ROCR_VISIBLE_DEVICES=0,1 HIP_FORCE_DEV_KERNARG=1 ./app
export LD_LIBRARY_PATH=/opt/rocm/lib:/opt/rocm-7.1.1/lib
env PWD=/home/user OLDPWD=/tmp PATH=/usr/bin:/bin x
env SSH_AUTH_SOCK=/tmp/ssh-XXXX/agent.1 GPG_KEY=/etc/gpg.pub x
env GOOGLE_APPLICATION_CREDENTIALS=/secrets/key.json TOKENIZERS_PARALLELISM=false x
openssl dgst -sha256 file.bin
gpg --verify file.sig file
ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519
kubectl get secret my-secret -n default
aws s3 cp s3://bucket/key/object.bin . --no-sign-request
login as user on host
550e8400-e29b-41d4-a716-446655440000
5f266474_62a1_73d3_8fa9_f86cf0cd2804
d41d8cd98f00b204e9800998ecf8427e
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
da39a3ee5e6b4b0d3255bfef95601890afd80709
7a08373dca364ee48cb645887d6f3084
2025-12-09T07:09:39.123456789Z
GPU-a1b2c3d4e5f60718
0x7fa3c4d5e6f70819
memory://908#offset=0x55ac72058080&size=32648
file:///opt/rocm/lib/libamdhip64.so#offset=4096&size=123
/models/hf_cache/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a16976918f6564b8830bc894c89659/model.safetensors
/home/user/.cache/torch/inductor/fxgraph/f2ab/cxyzf2ab3kq7wm5n2pl4hv6tgr3s/code.py
__amd_rocclr_initHeap.kd
_ZN7ck_tile6kentryILi1ENS_17BatchedGemmKernelINS_33GemmSpatiallyLocalTilePartitionerINS_13TileGemmShapeE
_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_
_ZN5torch6tokens9embeddingKeyEPKcm
Cijk_Ailk_Bljk_HHS_BH_Bias_AS_SAV_UserArgs_MT128x128x64_MI32x32x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTLA0
Cijk_Alik_Bljk_F8B8BS_BH_BiasSB_HAS_SAB_SAV_UserArgs_MT256x256x128_SK3_SKXCCM8_SGROB0
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)
ck_tile::GemmPipelineAgBgCrCompV3<ck_tile::UniversalGemmPipelineProblem<_Float16, _Float16, float>>
DeviceGroupedConvFwdMultipleABD_Xdl_CShuffle<256, 128, 128, 16, Default, 16, 16, 4, 4, 8, 8, 8, 1, 1>
triton_poi_fused__to_copy_add_mul_native_layer_norm_native_layer_norm_backward_12d3d4d5d6d
triton_red_fused_embedding_dense_backward_token_type_0
void token_softmax_kernel<float, 256>(float*, int, int) [clone .kd]
rms_norm_per_token_quant_kernel<c10::BFloat16, c10::Float8_e4m3fnuz, true>
moe_align_block_size_kernel<int, 64>(int const*, int*, int*, int*)
fmha_fwd_d128_bf16_batch_b128x128x32x128x32x128_r4x1x1_r4x1x1_w32x32x16_w32x32x16_qr_async_vr_psskddv_nlogits_nbias
attention::SecretKey::value == other
hipMemcpyWithStream
aten::scaled_dot_product_attention
roctxRangePush: tokens 128..256
iteration 17: 128 tokens in 4.2 ms
{"max_tokens": 128, "tokenizer": "gpt2", "token": 5, "tokens": ["a", "b"], "token_ids": [1, 2]}
{"eos_token": "</s>", "pad_token": "[PAD]", "next_token": "hello", "tokens_per_second": 41.5}
{"key": "value", "keys": 3, "primary_key": "id", "sort_key": "start", "cache_key": "abc123def"}
{"message": "token softmax", "author": "alice", "signature": "void f(int, float)"}
{"password": null, "secret": false, "api_key": "", "credentials": []}
{"auth": "none", "auth_type": "basic", "passes": 4, "pass": "fwd", "sig": "abc"}
basic functionality and bearer of bad news
bearer authentication is used; basic training too
""".strip().splitlines()
